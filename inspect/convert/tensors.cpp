#include "inspect/convert/tensors.h"

#include <algorithm>

#include "core/bfloat.h"

namespace hebb {
namespace {

/// Whether decays are exponential in the tensor: 8 bits of it are fewer of them. The tensors are small.
bool stays_wide(std::string_view name) { return name.ends_with(".A_log") || name.ends_with(".dt_bias"); }

/// Whether a recipe is one whole tensor.
bool is_whole(const Recipe& recipe) {
  if (recipe.pieces.size() != 1) { return false; }
  const Piece& only = recipe.pieces.front();
  return only.first == 0 && only.rows == recipe.shape[0] && only.add == 0;
}

/// Values of a recipe in double.
std::vector<double> mixed(const Recipe& recipe, const Values& source) {
  if (is_whole(recipe)) {
    std::vector<double> all = source.doubles(recipe.pieces.front().name);
    if (std::ssize(all) == recipe.shape.numel()) { return all; }
  }
  const int64_t rows = recipe.shape[0], width = rows == 0 ? 0 : recipe.shape.numel() / rows;
  std::vector<double> values(static_cast<size_t>(recipe.shape.numel()));
  std::map<std::string, std::vector<double>> read;
  for (const Piece& p : recipe.pieces) {
    const auto [it, is_new] = read.try_emplace(p.name);
    if (is_new) { it->second = source.doubles(p.name); }
    const std::vector<double>& from = it->second;
    HEBB_ASSERT((p.first + p.rows) * width <= std::ssize(from) && (p.at + p.rows) * width <= std::ssize(values));
    const auto begin = from.begin() + p.first * width;
    std::transform(begin, begin + p.rows * width, values.begin() + p.at * width,
                   [&](double x) { return p.add == 0 ? x : x + p.add; });
  }
  return values;
}

/// Hands over values, each as `rounded` makes it, some at a time.
template <class Rounded>
void take_as(const std::vector<double>& values, const TakeBytes& take, const Rounded& rounded) {
  constexpr size_t kSome = 1 << 18;
  std::vector<decltype(rounded(0.0))> some;
  for (size_t at = 0; at < values.size(); at += some.size()) {
    some.resize(std::min(kSome, values.size() - at));
    std::transform(values.begin() + static_cast<int64_t>(at), values.begin() + static_cast<int64_t>(at + some.size()),
                   some.begin(), rounded);
    take(some.data(), some.size() * sizeof(some[0]));
  }
}

}  // namespace

void Values::change(const std::string& name, std::function<void(std::vector<double>&)> by) {
  changes_[name].push_back(std::move(by));
}

void Values::add(const std::string& name, std::function<std::vector<double>()> make, const std::string& like) {
  dtypes_[name] = dtype(like);
  changes_[name] = {[make = std::move(make)](std::vector<double>& values) { values = make(); }};
}

std::vector<double> Values::doubles(const std::string& name) const {
  std::vector<double> values;
  if (dtypes_.count(name) == 0) { values = file_.doubles(name); }
  if (const auto changes = changes_.find(name); changes != changes_.end()) {
    for (const auto& by : changes->second) { by(values); }
  }
  return values;
}

DType Values::dtype(const std::string& name) const {
  const auto it = dtypes_.find(name);
  return it != dtypes_.end() ? it->second : file_.find(name)->dtype;
}

DType Tensors::dtype_of(const Recipe& recipe) const {
  // Without pieces: as the tensor before it.
  const DType from = recipe.pieces.empty() ? (list_.empty() ? DType::f32 : list_.back().tensor.dtype)
                                           : source_.dtype(recipe.pieces.front().name);
  if (from == DType::i32) { return from; }
  const bool is_changed = std::any_of(recipe.pieces.begin(), recipe.pieces.end(),
                                      [&](const Piece& p) { return p.add != 0 || source_.is_changed(p.name); });
  if (dtype_.empty()) { return from == DType::u8 || (is_changed && from == DType::bf16) ? DType::f32 : from; }
  const bool stays = stays_wide(recipe.name) && !(from == DType::bf16 && !is_changed);
  return dtype_ == "bf16" && !stays ? DType::bf16 : DType::f32;
}

void Tensors::add(const Recipe& recipe) {
  const DType dtype = dtype_of(recipe);
  void* data = nullptr;
  if (is_whole(recipe)) {
    const std::string& name = recipe.pieces.front().name;
    const SafetensorsFile* file = source_.file().file_of(name);
    if (!source_.is_changed(name) && dtype == source_.dtype(name) && file->at(name).numel() == recipe.shape.numel()) {
      data = const_cast<uint8_t*>(file->data(file->at(name)));  // only read
    }
  }
  if (data == nullptr) { recipes_.emplace(recipe.name, recipe); }
  list_.push_back({recipe.name, {data, dtype, recipe.shape}});
}

void Tensors::read(const NamedTensor& tensor, const TakeBytes& take) const {
  const auto recipe = recipes_.find(tensor.name);
  if (recipe == recipes_.end()) { return take(tensor.tensor.data, static_cast<size_t>(tensor.tensor.bytes())); }
  const std::vector<double> values = mixed(recipe->second, source_);
  if (tensor.tensor.dtype == DType::bf16) {
    take_as(values, take, [](double x) { return nearest_bf16(static_cast<float>(x)); });
  } else if (tensor.tensor.dtype == DType::f64) {
    take_as(values, take, [](double x) { return x; });
  } else {
    take_as(values, take, [](double x) { return static_cast<float>(x); });
  }
}

std::string Tensors::torch_dtype() const {
  const auto has = [&](DType dtype) {
    return std::any_of(list_.begin(), list_.end(), [&](const NamedTensor& t) {
      return t.tensor.dtype == dtype && !(dtype == DType::f32 && stays_wide(t.name));
    });
  };
  return has(DType::f64) ? "float64" : has(DType::f32) || list_.empty() ? "float32" : "bfloat16";
}

}  // namespace hebb
