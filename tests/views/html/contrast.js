// WCAG 2.2: how many texts are shown, and which of them (4.5) or of the fields (3) stand out too
// little from what is behind them.
() => {
  const rgba = (text) => {
    const [r, g, b, a] = text.match(/[\d.]+/g).map(Number);
    return [r, g, b, a ?? 1];
  };
  const over = (a, b) => [0, 1, 2].map((i) => a[i] * a[3] + b[i] * (1 - a[3])).concat(1);
  const linear = (c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
  const light = (c) => 0.2126 * linear(c[0]) + 0.7152 * linear(c[1]) + 0.0722 * linear(c[2]);
  const ratio = (a, b) => {
    const [darker, lighter] = [light(a), light(b)].sort((x, y) => x - y);
    return (lighter + 0.05) / (darker + 0.05);
  };
  const ground = (e) => {
    const layers = [];
    for (; e; e = e.parentElement) layers.push(rgba(getComputedStyle(e).backgroundColor));
    return layers.reverse().reduce((below, one) => over(one, below), [255, 255, 255, 1]);
  };
  const found = [];
  const judge = (e, color, told) => {
    let share = 1;
    for (let up = e; up; up = up.parentElement) share *= Number(getComputedStyle(up).opacity);
    const back = ground(e);
    const ink = rgba(color);
    const r = ratio(over([ink[0], ink[1], ink[2], ink[3] * share], back), back);
    if (r < 4.5) found.push(`${told}: ${r.toFixed(2)}`);
  };
  let texts = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode()); ) {
    const e = node.parentElement;
    const unseen = !node.data.trim() || !e.getClientRects().length;
    if (unseen || e.closest("script, title, .labels")) continue;
    const style = getComputedStyle(e);
    texts++;
    const told = `${e.tagName} ${node.data.trim().slice(0, 30)}`;
    judge(e, e.closest("svg") ? style.fill : style.color, told);
  }
  const field = document.querySelector("#filter");
  if (field) judge(field, getComputedStyle(field, "::placeholder").color, "placeholder");
  for (const e of document.querySelectorAll("#filter, #theme")) {
    const edge = ratio(rgba(getComputedStyle(e).borderColor), ground(e.parentElement));
    if (edge < 3) found.push(`edge of ${e.id}: ${edge.toFixed(2)}`);
  }
  return [texts, found];
}
