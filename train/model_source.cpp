#include "train/model_source.h"

#include <algorithm>
#include <limits>

#include "core/safetensors.h"

namespace hebb {
namespace {

std::string shape_text(const std::vector<int64_t>& dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(dims[i]);
  }
  return text + "]";
}

std::vector<int64_t> dims_of(const Shape& shape) { return {shape.dims.begin(), shape.dims.begin() + shape.rank}; }

bool is_integer_type(const std::string& dtype) { return dtype[0] == 'I' || dtype[0] == 'U'; }

/// Every way in which the file's tensors are not the model's, one text each.
std::vector<std::string> differences(const SafetensorsFile& file, const ParamStore& params) {
  std::vector<std::string> found;
  for (const auto& p : params.all()) {
    const SafetensorsFile::Entry* e = file.find(p->name());
    if (e == nullptr) {
      found.push_back(p->name() + " " + p->spec.shape.str() + " is missing");
    } else if (e->shape != dims_of(p->spec.shape)) {
      found.push_back(p->name() + " is " + shape_text(e->shape) + ", not " + p->spec.shape.str());
    } else if (is_integer_type(e->dtype_text) != (p->spec.kind == ParamKind::buffer)) {
      found.push_back(p->name() + " is " + e->dtype_text + ", not " +
                      (p->spec.kind == ParamKind::buffer ? "an integer type" : "a floating-point type"));
    }
  }
  for (const auto& [name, e] : file.entries()) {
    if (params.find(name) == nullptr) {
      found.push_back(name + " " + shape_text(e.shape) + " is not in the model");
    }
  }
  return found;
}

void load_floats(const SafetensorsFile& file, Stream& stream, const Param& p) {
  const SafetensorsFile::Entry& e = *file.find(p.name());
  if (e.dtype_text == dtype_name(p.value.dtype)) {
    copy_to_device(stream, p.value, file.data(e));
    return;
  }
  const std::vector<double> values = file.doubles(p.name());
  if (p.value.dtype == DType::f64) {
    copy_to_device(stream, p.value, values.data());
  } else {
    const std::vector<float> narrow(values.begin(), values.end());
    copy_to_device(stream, p.value, narrow.data());
  }
}

void load_integers(const SafetensorsFile& file, Stream& stream, const Param& p) {
  std::vector<int32_t> narrow;
  for (const int64_t value : file.integers(p.name())) {
    if (value < std::numeric_limits<int32_t>::min() || value > std::numeric_limits<int32_t>::max()) {
      throw CheckpointError(file.path().string() + ": " + p.name(), "value out of range", std::to_string(value),
                            "a 32-bit integer");
    }
    narrow.push_back(static_cast<int32_t>(value));
  }
  copy_to_device(stream, p.value, narrow.data());
}

}  // namespace

fs::path find_checkpoint(const fs::path& path) {
  if (fs::exists(path / "model.safetensors") && fs::exists(path / "config.json")) {
    return path;
  }
  const fs::path latest = path / "checkpoints" / "latest";
  if (!fs::exists(latest)) {
    return {};
  }
  std::string name = read_file(latest, ExitCode::kCheckpoint);
  name.erase(std::find_if(name.begin(), name.end(), [](char c) { return c == '\n' || c == '\r'; }), name.end());
  return path / "checkpoints" / name;
}

fs::path find_weights(const fs::path& path) {
  if (!fs::is_directory(path)) {
    return path;
  }
  const fs::path checkpoint = find_checkpoint(path);
  if (checkpoint.empty()) {
    throw CheckpointError(path.string(), "no weights here", "a folder without model.safetensors or checkpoints/latest",
                          "a safetensors file, a checkpoint or a run folder");
  }
  return checkpoint / "model.safetensors";
}

ModelSource read_model_source(const fs::path& path, const std::vector<std::string>& overrides) {
  ModelSource source;
  fs::path file = path;
  if (fs::is_directory(path)) {
    source.weights = find_weights(path);
    file = source.weights.parent_path() / "config.json";
  }
  source.config = load_config(file.string());
  for (const std::string& assignment : overrides) {
    apply_override(source.config, assignment);
  }
  const Json* model = source.config.is_object() ? source.config.find("model") : nullptr;
  source.is_run = model != nullptr;
  Fields::read(source.is_run ? *model : source.config, source.is_run ? "model" : "", source.model);
  return source;
}

void load_weights(const fs::path& path, Stream& stream, ParamStore& params) {
  const SafetensorsFile file(find_weights(path));
  const std::vector<std::string> found = differences(file, params);
  if (!found.empty()) {
    std::string text;
    for (const std::string& d : found) {
      text += (text.empty() ? "" : "; ") + d;
    }
    throw CheckpointError(file.path().string(), "the tensors are not those of the model: " + text);
  }
  for (const auto& p : params.all()) {
    if (p->spec.kind == ParamKind::buffer) {
      load_integers(file, stream, *p);
    } else {
      load_floats(file, stream, *p);
    }
  }
}

}  // namespace hebb
