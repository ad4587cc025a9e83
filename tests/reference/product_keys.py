"""Selection with product keys (docs/layers/sdm.md, fwpkm.md and pkm.md): slot i * n + j has the score s1[i] + s2[j]."""
import torch


def largest(scores, k):
    """Indices of the k largest along the last dimension, the best first; ties go to the lower index."""
    return scores.detach().sort(stable=True, dim=-1, descending=True).indices[..., :k]


def best_pairs(s1, s2, k):
    """s1, s2 [..., n] -> i, j [..., k] of the k largest sums, the best first; ties go to the lower slot."""
    c = min(k, s1.shape[-1])
    i, j = largest(s1, c).sort(-1).values, largest(s2, c).sort(-1).values
    sums = s1.gather(-1, i).unsqueeze(-1) + s2.gather(-1, j).unsqueeze(-2)  # [..., c, c], ascending by slot
    chosen = largest(sums.flatten(-2), k)
    return i.gather(-1, torch.div(chosen, c, rounding_mode="floor")), j.gather(-1, chosen % c)
