#include "train/tensor_match.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <set>

#include "core/sign_of_life.h"

namespace hebb {
namespace {

bool is_integer_type(const std::string& dtype) { return dtype[0] == 'I' || dtype[0] == 'U'; }

/// How the tensor in the file is not the expected one; empty if it is.
std::string difference(const SafetensorsFile::Entry* e, const ExpectedTensor& x) {
  const std::vector<int64_t> shape(x.shape.dims.begin(), x.shape.dims.begin() + x.shape.rank);
  if (e == nullptr) { return x.name + " " + x.shape.str() + " is missing"; }
  if (e->shape != shape) { return x.name + " is " + e->shape_text() + ", not " + x.shape.str(); }
  if (is_integer_type(e->dtype_text) != x.is_integer) {
    return x.name + " is " + e->dtype_text + ", not " + (x.is_integer ? "an integer type" : "a floating-point type");
  }
  return "";
}

/// The first few: of another model all differ.
std::string first_of(const std::vector<std::string>& differences) {
  constexpr size_t kShown = 4;
  std::string text;
  for (size_t i = 0; i < std::min(kShown, differences.size()); ++i) { text += (i == 0 ? "" : "; ") + differences[i]; }
  return text + (differences.size() > kShown ? fmt::format("; and {} more", differences.size() - kShown) : "");
}

}  // namespace

std::vector<ExpectedTensor> tensors_of(const ParamStore& params) {
  std::vector<ExpectedTensor> tensors;
  for (const auto& p : params.all()) {
    tensors.push_back({p->name(), p->spec.shape, p->spec.kind == ParamKind::buffer});
  }
  return tensors;
}

void require_tensors(const WeightSource& file, const std::vector<ExpectedTensor>& expected) {
  std::vector<std::string> differing, unknown;
  std::set<std::string> names;
  for (const ExpectedTensor& x : expected) {
    names.insert(x.name);
    if (std::string d = difference(file.find(x.name), x); !d.empty()) { differing.push_back(std::move(d)); }
  }
  for (const std::string& name : file.names()) {
    if (names.count(name) == 0) {
      unknown.push_back(name + " " + file.find(name)->shape_text() + " is not in the model");
    }
  }
  if (differing.empty() && unknown.empty()) { return; }
  const std::string separator = differing.empty() || unknown.empty() ? "" : "; ";
  throw CheckpointError(file.path().string(), "the tensors are not those of the model: " + first_of(differing) +
                                                  separator + first_of(unknown));
}

void load_tensor(const WeightSource& file, const std::string& name, Stream& stream, const Tensor& to) {
  sign_of_life();
  const SafetensorsFile::Entry& entry = *file.find(name);
  if (entry.dtype_text == dtype_name(to.dtype)) {
    copy_to_device(stream, to, file.file_of(name)->data(entry));
  } else if (to.dtype == DType::i32) {
    std::vector<int32_t> narrow;
    for (const int64_t value : file.integers(name)) {
      if (value < std::numeric_limits<int32_t>::min() || value > std::numeric_limits<int32_t>::max()) {
        throw CheckpointError(file.path().string() + ": " + name, "value out of range", std::to_string(value),
                              "a 32-bit integer");
      }
      narrow.push_back(static_cast<int32_t>(value));
    }
    copy_to_device(stream, to, narrow.data());
  } else {
    dispatch_real(to.dtype, [&]<class S>(S) {
      const std::vector<double> values = file.doubles(name);
      const std::vector<S> typed(values.begin(), values.end());
      copy_to_device(stream, to, typed.data());
    });
  }
}

}  // namespace hebb
