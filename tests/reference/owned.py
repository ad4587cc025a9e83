"""Updates that layers own, once per step that was not skipped: thresholds of `ham` (docs/layers/ham.md, Thresholds), idle counters of `vq` (docs/layers/vq.md, Idle counters)."""
import math

import torch

import model as reference


class Owned:
    def __init__(self, model):
        self.model, self.inside, self.moments = model, [], {}

    def saw(self, inside):
        """Decisions of a micro-batch."""
        self.inside.append(inside)

    def step(self, fast, s):
        self.thresholds(fast, s)
        self.idle(fast)
        self.inside = []

    def thresholds(self, fast, s):
        layers, gaps = {}, {}
        for i, block in enumerate(reference.blocks(self.model)):
            c = block["mixer"].get("threshold", {})
            if block["mixer"]["type"] == "ham" and c.get("mode", "learned") == "learned":
                name = f"blocks.{i}.mixer."
                masks = torch.cat([inside[name + "mask"] for inside in self.inside])
                layers[name], gaps[name] = c, int(masks.sum()) / masks.numel() - c.get("target", 0.5)
        mean = sum(gaps.values()) / max(len(gaps), 1)
        for name, c in layers.items():
            if s < c.get("freeze_steps", 20000):
                continue
            gap = gaps[name] if c.get("scope", "global") == "layer" else mean
            clip = c.get("clip", 1.0)
            g = min(max(-c.get("gain", 1.0) * gap, -clip), clip)
            b1, b2 = c.get("betas", [0.9, 0.999])
            m, v, t = self.moments.get(name, (0.0, 0.0, 0))
            m, v, t = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g, t + 1
            self.moments[name] = m, v, t
            fast[name + "threshold"] = fast[name + "threshold"] - c.get("lr", 2.5e-4) * (m / (1 - b1 ** t)) / (math.sqrt(v / (1 - b2 ** t)) + c.get("eps", 1e-8))

    def idle(self, fast):
        for i, block in enumerate(reference.blocks(self.model)):
            name = f"blocks.{i}.mixer."
            if block["mixer"]["type"] != "vq" or name + "assign" not in self.inside[0]:
                continue
            idle = fast[name + "idle"] + 1
            for inside in self.inside:
                for head, ids in enumerate(inside[name + "assign"].transpose(0, 1)):  # [B, T] of every head
                    idle[head, ids.flatten()] = 0
                    if block["mixer"].get("quantizer", "sf_diveq") == "sf_diveq":
                        idle[head, ids.flatten() + 1] = 0  # the segment's other end
            fast[name + "idle"] = idle
