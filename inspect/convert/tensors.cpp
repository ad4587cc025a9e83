#include "inspect/convert/tensors.h"

#include <algorithm>

#include "core/bfloat.h"

namespace hebb {
namespace {

/// Values of a recipe in double.
std::vector<double> mixed(const Recipe& recipe, const Values& source) {
  const int64_t rows = recipe.shape[0], width = rows == 0 ? 0 : recipe.shape.numel() / rows;
  std::vector<double> values(static_cast<size_t>(recipe.shape.numel()));
  std::map<std::string, std::vector<double>> read;
  for (const Piece& p : recipe.pieces) {
    const std::vector<double>* from = source.changed(p.name);
    if (from == nullptr) {
      const auto [it, is_new] = read.try_emplace(p.name);
      if (is_new) { it->second = source.file().doubles(p.name); }
      from = &it->second;
    }
    HEBB_ASSERT((p.first + p.rows) * width <= std::ssize(*from) && (p.at + p.rows) * width <= std::ssize(values));
    const auto begin = from->begin() + p.first * width;
    std::transform(begin, begin + p.rows * width, values.begin() + p.at * width,
                   [&](double x) { return p.add == 0 ? x : x + p.add; });
  }
  return values;
}

}  // namespace

std::vector<double>& Values::change(const std::string& name) {
  const auto [it, is_new] = changed_.try_emplace(name);
  if (is_new) { it->second = file_.doubles(name); }
  return it->second;
}

void Values::add(const std::string& name, std::vector<double> values, const std::string& like) {
  dtypes_[name] = dtype(like);
  changed_[name] = std::move(values);
}

const std::vector<double>* Values::changed(const std::string& name) const {
  const auto it = changed_.find(name);
  return it == changed_.end() ? nullptr : &it->second;
}

DType Values::dtype(const std::string& name) const {
  const auto it = dtypes_.find(name);
  return it != dtypes_.end() ? it->second : file_.find(name)->dtype;
}

void Tensors::add(const Recipe& recipe, const Values& source) {
  // Without pieces: as the tensor before it.
  const DType from = recipe.pieces.empty() ? (list.empty() ? DType::f32 : list.back().tensor.dtype)
                                           : source.dtype(recipe.pieces.front().name);
  const bool is_changed = std::any_of(recipe.pieces.begin(), recipe.pieces.end(),
                                      [&](const Piece& p) { return p.add != 0 || source.changed(p.name) != nullptr; });
  const bool keeps = dtype_.empty() && from != DType::u8 && !(is_changed && from == DType::bf16);
  const bool stays = from == DType::i32 || keeps;
  const DType dtype = stays ? from : dtype_ == "bf16" ? DType::bf16 : DType::f32;
  if (recipe.pieces.size() == 1) {
    const Piece& only = recipe.pieces.front();
    const bool is_whole = only.first == 0 && only.rows == recipe.shape[0] && only.add == 0;
    const SafetensorsFile* file = source.file().file_of(only.name);
    if (is_whole && dtype == from && source.changed(only.name) == nullptr &&
        file->at(only.name).numel() == recipe.shape.numel()) {
      list.push_back(
          {recipe.name, {const_cast<uint8_t*>(file->data(file->at(only.name))), dtype, recipe.shape}});  // only read
      return;
    }
  }
  const std::vector<double> values = mixed(recipe, source);
  std::unique_ptr<char[]> memory(new char[values.size() * static_cast<size_t>(dtype_bytes(dtype))]);
  const auto fill = [&]<class T>(T* to, auto&& rounded) { std::transform(values.begin(), values.end(), to, rounded); };
  if (dtype == DType::bf16) {
    fill(reinterpret_cast<bf16*>(memory.get()), [](double x) { return nearest_bf16(static_cast<float>(x)); });
  } else if (dtype == DType::f64) {
    fill(reinterpret_cast<double*>(memory.get()), [](double x) { return x; });
  } else {
    fill(reinterpret_cast<float*>(memory.get()), [](double x) { return static_cast<float>(x); });
  }
  list.push_back({recipe.name, {memory.get(), dtype, recipe.shape}});
  memory_.push_back(std::move(memory));
}

std::string Tensors::torch_dtype() const {
  const auto has = [&](DType dtype) {
    return std::any_of(list.begin(), list.end(), [&](const NamedTensor& t) { return t.tensor.dtype == dtype; });
  };
  return has(DType::f64) ? "float64" : has(DType::f32) || list.empty() ? "float32" : "bfloat16";
}

}  // namespace hebb
