#include "layers/layer.h"

namespace hebb {

std::vector<Var> SharedValues::all() const {
  std::vector<Var> found{embeddings, eda_score};
  for (const auto* values : {&first_values, &embedding_values}) {
    for (const auto& [group, var] : *values) { found.push_back(var); }
  }
  for (const Visible& v : visible) { found.insert(found.end(), {v.keys.lo, v.keys.hi}); }
  for (const Angles& a : angles) { found.push_back(a.table); }
  std::erase_if(found, [](Var var) { return !var; });
  return found;
}

}  // namespace hebb
