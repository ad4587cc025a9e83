#pragma once
#include <string>
#include <vector>

#include "layers/model.h"

namespace hebb {

/// Training FLOPs as a paper counts them, beside our own count of the same model.
struct PaperFlops {
  std::string name;               // "fwpkm", "sdm", "lingua", "ham"
  double training_per_token = 0;  // forward and backward
};

/// The accountings that cover every layer type of the model, for rows of `length` tokens:
/// * fwpkm (docs/layers/fwpkm.md, FLOP accounting): 6 x weights of matrix products and convolutions; recurrences and
/// attention are free.
/// * sdm (docs/layers/sdm.md, FLOP accounting): 3 x (2 x weights of matrix products + attention and state); lingua:
/// what the SDM
///   authors' trainer logs, full causal attention in every block.
/// * ham (docs/layers/ham.md, FLOP accounting): norms and activations count too, and the embedding as a matrix product.
std::vector<PaperFlops> paper_flops(const Model& model, int64_t length);

}  // namespace hebb
