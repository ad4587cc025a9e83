#pragma once
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/safetensors_writer.h"
#include "core/weight_source.h"
#include "inspect/convert/names.h"

namespace hebb {

/// Tensors of a checkpoint of which some have other values than its file. Values are made when they are asked for.
class Values {
 public:
  explicit Values(const WeightSource& file) : file_(file) {}

  const WeightSource& file() const { return file_; }
  /// Changes the values of a tensor behind earlier changes.
  void change(const std::string& name, std::function<void(std::vector<double>&)> by);
  /// A tensor that the file has not, or has with other values: what `make` returns, in the number format of `like`.
  void add(const std::string& name, std::function<std::vector<double>()> make, const std::string& like);

  bool is_changed(const std::string& name) const { return changes_.count(name) > 0; }
  std::vector<double> doubles(const std::string& name) const;
  DType dtype(const std::string& name) const;

 private:
  const WeightSource& file_;
  std::map<std::string, std::vector<std::function<void(std::vector<double>&)>>> changes_;
  std::map<std::string, DType> dtypes_;  // of those that were added
};

/// Tensors of a conversion: bytes of the source where values and type stay, else values of their own. Values that are
/// changed are not rounded to BF16 unless it is asked for: such tensors become F32. Logarithms of decays and biases of
/// steps (A_log, dt_bias) never are.
class Tensors {
 public:
  /// dtype: "fp32", "bf16" or, as in the source, "".
  Tensors(std::string dtype, const Values& source) : dtype_(std::move(dtype)), source_(source) {}

  void add(const Recipe& recipe);
  /// "float32", the widest of them but for those that are never BF16, as config.json of Hugging Face says it.
  std::string torch_dtype() const;
  /// Names, types and shapes; read() has the bytes.
  const std::vector<NamedTensor>& list() const { return list_; }
  /// Hands over the bytes of a tensor of the list.
  void read(const NamedTensor& tensor, const TakeBytes& take) const;

 private:
  DType dtype_of(const Recipe& recipe) const;

  std::string dtype_;
  const Values& source_;
  std::vector<NamedTensor> list_;
  std::map<std::string, Recipe, std::less<>> recipes_;  // of those that are not bytes of the source
};

}  // namespace hebb
