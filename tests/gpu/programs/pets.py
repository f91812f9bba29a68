import io, time, torch, torchvision, numpy as np
from PIL import Image
from torchvision import transforms as T
rng = np.random.default_rng(0)
files = []
for _ in range(64):
    b = io.BytesIO(); Image.fromarray(rng.integers(0, 255, (480, 640, 3), dtype=np.uint8)).save(b, "JPEG"); files.append(b.getvalue())
class Pets(torch.utils.data.Dataset):
    look = T.Compose([T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize([.5]*3, [.5]*3)])
    def __len__(self): return 1 << 20
    def __getitem__(self, i): return self.look(Image.open(io.BytesIO(files[i % 64]))), i % 37
net = torchvision.models.resnet50(num_classes=37).cuda().to(memory_format=torch.channels_last)
best = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
n, t = 0, time.time()
for seen, kind in torch.utils.data.DataLoader(Pets(), 128, num_workers=4, pin_memory=True):
    seen = seen.cuda(non_blocking=True).to(memory_format=torch.channels_last); kind = kind.cuda(non_blocking=True)
    with torch.autocast("cuda", torch.bfloat16):
        bad = torch.nn.functional.cross_entropy(net(seen), kind)
    best.zero_grad(); bad.backward(); best.step()
    n += 1
    if n % 10 == 0: print(n, round(10 / (time.time() - t), 2), "it/s", bad.item(), flush=True); t = time.time()
