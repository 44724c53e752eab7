# A server that answers two requests in its own process.
import asyncio
import json

import torch
from torch import nn

torch.manual_seed(0)
app = {"model": nn.Sequential(nn.Linear(3, 5), nn.GELU(), nn.Linear(5, 2)).eval()}


async def answer(reader, writer):
    numbers = json.loads(await reader.readline())
    with torch.no_grad():
        result = app["model"](torch.tensor([numbers]))
    writer.write(json.dumps(result.tolist()).encode() + b"\n")
    await writer.drain()
    writer.close()


async def ask(port, numbers):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(json.dumps(numbers).encode() + b"\n")
    print((await reader.readline()).decode().strip())
    writer.close()


async def main():
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        for numbers in ([1.0, 2.0, 3.0], [0.0, -1.0, 0.5]):
            await ask(port, numbers)


asyncio.run(main())
