#pragma once
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/weight_source.h"
#include "inspect/convert/names.h"

namespace hebb {

/// Tensors of a checkpoint of which some have other values than its file.
class Values {
 public:
  explicit Values(const WeightSource& file) : file_(file) {}

  const WeightSource& file() const { return file_; }
  /// The values of a tensor, to change.
  std::vector<double>& change(const std::string& name);
  /// A tensor that the file has not, with the number format of `like`.
  void add(const std::string& name, std::vector<double> values, const std::string& like);

  /// Null where they are those of the file.
  const std::vector<double>* changed(const std::string& name) const;
  DType dtype(const std::string& name) const;

 private:
  const WeightSource& file_;
  std::map<std::string, std::vector<double>> changed_;
  std::map<std::string, DType> dtypes_;  // of those that the file has not
};

/// Tensors of a conversion: bytes of the source where values and type stay, else values of their own. Values that are
/// changed are not rounded to BF16 unless it is asked for: such tensors become F32.
class Tensors {
 public:
  /// dtype: "fp32", "bf16" or, as in the source, "".
  explicit Tensors(std::string dtype) : dtype_(std::move(dtype)) {}

  void add(const Recipe& recipe, const Values& source);
  /// "float32", the widest of them, as config.json of Hugging Face says it.
  std::string torch_dtype() const;

  std::vector<NamedTensor> list;

 private:
  std::string dtype_;
  std::vector<std::unique_ptr<char[]>> memory_;
};

}  // namespace hebb
