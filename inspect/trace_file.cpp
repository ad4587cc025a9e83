#include "inspect/trace_file.h"

#include <fmt/core.h>

#include <set>

#include "core/safetensors.h"

namespace hebb {
namespace {

void check_documents(const TraceInput& input, const std::string& path) {
  for (int64_t b = 0; b < input.rows; ++b) {
    std::set<int64_t> seen;
    for (int64_t t = 0; t < input.length; ++t) {
      const size_t i = static_cast<size_t>(b * input.length + t);
      if ((t == 0 || input.doc_ids[i] != input.doc_ids[i - 1]) && !seen.insert(input.doc_ids[i]).second) {
        throw DataError(path, fmt::format("doc_ids[{:d}, {:d}]: a document returns", b, t),
                        fmt::format("{:d} again", input.doc_ids[i]), "ids that do not return within a row");
      }
    }
  }
}

/// Owns the bytes behind the tensors that are written.
class Writer {
 public:
  explicit Writer(DType real) : real_(real) {}

  void reals(const std::string& name, const Shape& shape, const std::vector<double>& values) {
    if (real_ == DType::f64) {
      add(name, shape, std::vector<double>(values), DType::f64);
    } else {
      add(name, shape, std::vector<float>(values.begin(), values.end()), DType::f32);
    }
  }
  void integers(const std::string& name, const Shape& shape, const std::vector<int64_t>& values) {
    add(name, shape, std::vector<int32_t>(values.begin(), values.end()), DType::i32);
  }
  const std::vector<NamedTensor>& tensors() const { return tensors_; }

 private:
  template <class T> void add(const std::string& name, const Shape& shape, std::vector<T> values, DType dtype) {
    auto owned = std::make_shared<std::vector<T>>(std::move(values));
    tensors_.push_back({name, {owned->data(), dtype, shape}});
    owners_.push_back(owned);
  }
  DType real_;
  std::vector<NamedTensor> tensors_;
  std::vector<std::shared_ptr<void>> owners_;
};

Shape to_shape(const std::vector<int64_t>& dims) {
  Shape s;
  for (const int64_t d : dims) { s.dims[static_cast<size_t>(s.rank++)] = d; }
  return s;
}

}  // namespace

TraceInput read_trace_input(const std::string& path) {
  const SafetensorsFile file(path);
  for (const auto& [name, entry] : file.entries()) {
    if (name != "inputs" && name != "targets" && name != "doc_ids") {
      throw DataError(path, "tensors of rows", "\"" + name + "\"", "inputs, targets, doc_ids");
    }
  }
  const auto* inputs = file.find("inputs");
  if (inputs == nullptr || inputs->shape.size() != 2) {
    throw DataError(path, "inputs", inputs == nullptr ? "no such tensor" : inputs->shape_text(), "integers [B, T]");
  }
  TraceInput input;
  input.rows = inputs->shape[0];
  input.length = inputs->shape[1];
  if (input.rows < 1 || input.length < 1) {
    throw DataError(path, "inputs", inputs->shape_text(), "at least one row and one token");
  }
  input.inputs = file.integers("inputs");
  for (const auto& [name, to] : {std::pair{"targets", &input.targets}, std::pair{"doc_ids", &input.doc_ids}}) {
    if (const auto* e = file.find(name)) {
      if (e->shape != inputs->shape) {
        throw DataError(path, name, e->shape_text(), inputs->shape_text() + ", the shape of inputs");
      }
      *to = file.integers(name);
    }
  }
  if (!input.doc_ids.empty()) { check_documents(input, path); }
  return input;
}

std::map<std::string, Inspector::Record> read_forced(const std::string& path) {
  const SafetensorsFile file(path);
  std::map<std::string, Inspector::Record> forced;
  for (const auto& [name, entry] : file.entries()) {
    if (entry.dtype_text == "I32" || entry.dtype_text == "I64") {
      forced[name] = {entry.shape, file.integers(name), {}};
    }
  }
  return forced;
}

void write_trace(const std::string& path, const TraceOutput& output, bool fp64) {
  Writer writer(fp64 ? DType::f64 : DType::f32);
  writer.reals("logits", output.logits.shape, output.logits.values);
  if (output.has_loss) { writer.reals("loss", {1}, {output.loss}); }
  for (const auto& [name, t] : output.grads) { writer.reals("grad." + name, t.shape, t.values); }
  for (const auto& [name, t] : output.after) { writer.reals("after." + name, t.shape, t.values); }
  for (const auto& [name, r] : output.inside) {
    if (r.reals.empty()) {
      writer.integers(name, to_shape(r.shape), r.integers);
    } else {
      writer.reals(name, to_shape(r.shape), r.reals);
    }
  }
  write_safetensors(path, writer.tensors());
}

}  // namespace hebb
