# hookscope fingerprint 1
# arguments: [{"dtype": "float32", "name": "0", "shape": [1, 1, 8, 8]}]
# command: "fingerprint"
# device: "cpu"
# dtype: "float32"
# environment: {"kernels": "AVX2", "machine": "Linux x86_64", "threads": "2"}
# inputs: [{"dtype": "float32", "sha256": "3c165d907caa3a5040f2d56067b2cbad93047534ff801410e9f1844f172f4ee5", "shape": "1x8x8", "spec": "sample_models/five.png"}]
# model: {"blake3": null, "source": "file", "spec": "sample_models/digits.py:trained", "weights": "as built"}
# options: {"input": ["sample_models/five.png"]}
# rounding: ["in float64", "with other kernels"]
# seed: 0
# training: false
# versions: {"hookscope": "0.1.0", "numpy": "2.4.6", "python": "3.11.7", "safetensors": "0.8.0", "torch": "2.14.1", "torchvision": "0.29.1"}
# key type dtype shape mean std min max norm nonfinite rounding hash inputs projections
./input.0                    DigitsCNN    float32  1x1x8x8       0.272488 0.367482 0 1 3.65988 0 5.96e-08 a77fb6eb791e7123 - AAAAAIGAgDzAvz++AACAPgAAgD4AAIC+gYCAvQAAAAAAAAAAgYCAPQAAgD6gnx8+gYCAPYGAgLyBgIC8AAAAAAAAAADBwMC90M9PPgAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAMHAwL0AAIA+wL8/PqGgoL0AAAAAAAAAAAAAAAAAAAAA4eDgvbCvLz6wry++8O9vvgAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAIGAgL0AAIA+gYAAPQAAAAAAAAAAAAAAAAAAAACBgAA90M9PPqCfHz4AAAAAAAAAAAAAAAAAAAAAgYAAPQAAgL6wry++AAAAAAAAAAAAAAAAAAAAAA==
conv1/output                 Conv2d       float32  1x16x8x8      0.320277 0.425742 -0.71946 2.00279 17.0483 0 6.79e-08 58e1659cbccb4f2d input.0=-1 D5zgPfdl3rxdNim9olRdvR4DUb1mwh89KodAPfkZkDworr49e7ciPU5mmbyn6Aq9/t2HvFueljz14+S82TkDPX8a2T3AFti9A7JWvSO6/7scTE49X8WkPD2eiD0CBus7zFqQvVlO6D2Gn9u7psSfve1L0r1op1290oA8vXedzrt+DY+97AQavcHHlT0SjO+97TLjPHffgj01v989YuHCu9ZOLTxc1Bo9DJyCPTFFN70e7C090ua0vFTaRb3q0eU8pXxRPS/vwbxnuZM92I0XPYJ6ij3XEy6931L2vC46+b0ToiE9ZCDAO91UMz2V3548q2QrPWiskLzmqNY8VTxJPQ==
relu1/output                 ReLU         float32  1x16x8x8      0.358399 0.37869 0 2.00279 16.6847 0 6.78e-08 0619582390a46491 input.0=-1 dbLsPeSPt7zRcjy9QDd7vS31hL0AajQ9zmPHPK1whTx1gno9r3gBPf5j07uddxG9yibnu1Rkijx49gG9dHYLPXQ/7z1eUsq94b4/vZh2zDo6XG09wkPTPC/lhD1uuKg7pD+TvTzy+z0yn0W70iydvR5W0r3WvnS9ywZAvXTdW7uPPri9UoFnvWbEjT3ogfG9EX0oPf10iD0udOw9jIW8und9qzx65x49cdZtPf/Qfr1/rBc94ihTvFtuNb1FuSY9XAxmPelKvbxpKsE9pF2NPJLHsz3Bn2K9LOthvLAToL2+fXw81N7VO2yjBz3gflq8JwMGPdCW1Tv0K9487DtcPQ==
conv2/output                 Conv2d       float32  1x32x8x8      0.164612 1.52095 -6.51334 6.0026 69.2324 0 1.96e-07 4efe17ca5a07ee65 input.0=-1 4BhQvb2fpTwiDno9jCMxPYKzGrrD39S86d+cvUI6+z1nTUK8X9+wPZZziTxVTeU91pv7PMSN1z0v7nQ8fXx8Pv+pxz2YBgy+EZl8Pb4LWT1JONs9iGKSvD0rFD54pQo+HLWOvWgHvz0lXMq5AdFzvVpoFr7irig9HMRjOgweD7wgDju7C88evWWZSr0Iizu8X2gvPSMcwDxOhAO9jrW3vK0AOr1dm4G9oew0Pb2uGr3NHxK+fJTLPEzLDL6ZdhW9aIGYPLk+ab1SqYQ9oyCoPb8g/z2hTE68NIFtPUnqXTwN6o09PbKDu8rsZz1eB8C71Sz0vTvEL71jMYi9WZZXPQ==
relu2/output                 ReLU         float32  1x32x8x8      0.625636 1.00573 0 6.0026 53.6019 0 1.84e-07 330709d4ab1c6950 input.0=-1 I0KBvUbhbLwdmKk8HTGrvcK3WDsg3xw94J/ovFxBGz5mrjQ9rtjsPbQ4PT7h43I9FoBAvFyKID1TlKa9KZaIPtwuVT5NsUO+m3awPQQjfT2nc0c+OwkEPRqp0T2H4mo+k0DrvR8qhj44Qg890y+hvaxJh75X6Vu8iOHnvL7FK7x/ICW9CDh/vVPnebt8NYa9uPsXPuOOCD5YVpo68gWGPZI0Yb24CLu9zmcXPnZ6yb01adG9nxCBPTOQWL4TcNu8wP0qOEJxgb3UVzw+1R7vPRYdbj6FJai8QODQPSYol712utw90/H9vKhE9j05PpC9Sb+avWIHPb06V8K8HyZcPg==
pool/output                  MaxPool2d    float32  1x32x4x4      1.34807 1.34713 0 6.0026 43.1233 0 2.08e-07 44f4468cabbf4a28 input.0=-1 mISuPG1lCD2otOy90JROu+eCTz4ss6G8AXdVvWVMy70+wIG6cBqEPXiBgj2jNfw9logdPIjvpL3uFoo9MdmivY3lsj2uXD2+I3mPvZLOujszmfM9lJHRPWXdlb3WQ5Q9NIWDvOUFGj5zHoc9OLKEvWB7Ur3fTgW9kgZ0vdCMyrxNSHq9YpigvclxNjyT11C87ytOPhCXjjw+fo694qBrPMYwiL2ijsi8mNi2PfKYz7yQVw4+ea/iPeXJOz3La949feguPr/i2b22LY49wAJVvRqf6T17CKe9SF+BvYVGhj3RdgG+n+4RPg1wJr7F20a9wJhJvBljqTyXIqc961qyPQ==
fc/input.0                   Linear       float32  1x512         1.34807 1.34713 0 6.0026 43.1233 0 2.08e-07 44f4468cabbf4a28 - mISuPG1lCD2otOy90JROu+eCTz4ss6G8AXdVvWVMy70+wIG6cBqEPXiBgj2jNfw9logdPIjvpL3uFoo9MdmivY3lsj2uXD2+I3mPvZLOujszmfM9lJHRPWXdlb3WQ5Q9NIWDvOUFGj5zHoc9OLKEvWB7Ur3fTgW9kgZ0vdCMyrxNSHq9YpigvclxNjyT11C87ytOPhCXjjw+fo694qBrPMYwiL2ijsi8mNi2PfKYz7yQVw4+ea/iPeXJOz3La949feguPr/i2b22LY49wAJVvRqf6T17CKe9SF+BvYVGhj3RdgG+n+4RPg1wJr7F20a9wJhJvBljqTyXIqc961qyPQ==
fc/output                    Linear       float32  1x10          -9.99429 8.49819 -21.4125 11.0898 41.4855 0 1.23e-07 00daf6343180c353 - F+aNPtiEgr7HTKs+rlLivTYZ3L2pbzG+cyhPPvq7vb1TazI+cm45vgAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA==
./output                     DigitsCNN    float32  1x10          =fc/output -

