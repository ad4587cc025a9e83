#include "core/safetensors_writer.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>

#include "core/hash.h"
#include "core/join.h"
#include "core/json.h"
#include "core/plural.h"
#include "core/suggest.h"

namespace hebb {
namespace {

static_assert(std::endian::native == std::endian::little);  // the format is little-endian

constexpr uint64_t kLongestHeader = 100'000'000;
constexpr size_t kMostValues = 500'000;  // in a header: nine a matrix, its objects and lists included
constexpr const char* kMetadata = "__metadata__";

struct StoredType {
  const char* name;
  uint64_t bytes;
  std::optional<DType> dtype;
};

constexpr StoredType kStoredTypes[] = {
    {"F64", 8, DType::f64}, {"F32", 4, DType::f32}, {"BF16", 2, DType::bf16}, {"I64", 8, DType::i64},
    {"I32", 4, DType::i32}, {"U8", 1, DType::u8},   {"F16", 2, {}},           {"I16", 2, {}},
    {"I8", 1, {}},          {"U64", 8, {}},         {"U32", 4, {}},           {"U16", 2, {}},
    {"BOOL", 1, {}},        {"F8_E4M3", 1, {}},     {"F8_E5M2", 1, {}},       {"F8_E8M0", 1, {}},
    {"C64", 8, {}},
};

const StoredType* find_type(std::string_view name) {
  const auto it =
      std::find_if(std::begin(kStoredTypes), std::end(kStoredTypes), [&](const auto& t) { return name == t.name; });
  return it == std::end(kStoredTypes) ? nullptr : it;
}

std::string type_names() {
  return "one of " + join(kStoredTypes, ", ", [](const StoredType& t) { return t.name; });
}

std::string shape_string(const std::vector<int64_t>& shape) {
  return "[" + join(shape, ", ", [](int64_t size) { return std::to_string(size); }) + "]";
}

/// "FILE: tensor "NAME"", quoted so that odd names stay on one line.
std::string tensor_where(const fs::path& path, const std::string& name) {
  return path.string() + ": tensor " + Json(name).found();
}

/// Values of a JSON text, without reading it: a hostile header takes neither memory nor time.
size_t count_values(std::string_view text) {
  size_t count = 1;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (in_string && text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      in_string = !in_string;
    } else if (!in_string && (text[i] == ',' || text[i] == '[' || text[i] == '{')) {
      ++count;
    }
  }
  return count;
}

bool is_size(const Json& json) { return json.kind() == Json::Kind::integer && json.as_int() >= 0; }

/// The member `key`, a list of sizes (of `count` numbers unless 0).
std::vector<int64_t> read_sizes(const std::string& where, const Json& tensor, const char* key, size_t count) {
  const Json* list = tensor.find(key);
  const bool is_list = list != nullptr && list->is_array() && (count == 0 || list->items().size() == count) &&
                       std::all_of(list->items().begin(), list->items().end(), is_size);
  if (!is_list) {
    throw CheckpointError(where, std::string(key) + " is not valid",
                          list == nullptr ? "nothing" : list->dump().substr(0, 100),
                          "a list of " + (count == 0 ? "" : fmt::format("{:d} ", count)) + "integers >= 0");
  }
  std::vector<int64_t> sizes;
  for (const Json& item : list->items()) { sizes.push_back(item.as_int()); }
  return sizes;
}

SafetensorsFile::Entry read_entry(const std::string& where, const Json& json) {
  if (!json.is_object()) { throw CheckpointError(where, "the header entry is not valid", json.found(), "an object"); }
  for (const auto& [key, value] : json.members()) {
    if (key != "dtype" && key != "shape" && key != "data_offsets") {
      throw CheckpointError(where, "unknown key in the header", Json(key).found(),
                            "dtype, shape and data_offsets alone");
    }
  }
  const Json* dtype = json.find("dtype");
  if (dtype == nullptr || !dtype->is_string()) {
    throw CheckpointError(where, "unknown dtype", dtype == nullptr ? "nothing" : dtype->found(), type_names());
  }
  const StoredType* type = find_type(dtype->as_string());
  const std::vector<int64_t> shape = read_sizes(where, json, "shape", 0);
  const std::vector<int64_t> offsets = read_sizes(where, json, "data_offsets", 2);
  uint64_t bytes = type != nullptr ? type->bytes : 1;
  for (const int64_t size : shape) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes)) {
      throw CheckpointError(where, "the shape is too large", shape_string(shape), "fewer than 2^64 bytes");
    }
  }
  const auto begin = static_cast<uint64_t>(offsets[0]), end = static_cast<uint64_t>(offsets[1]);
  if (begin > end || (type != nullptr && end - begin != bytes)) {
    throw CheckpointError(where, "data_offsets do not fit " + dtype->as_string() + " " + shape_string(shape),
                          shape_string(offsets),
                          type != nullptr ? fmt::format("{:d} bytes", bytes) : "an end behind the begin");
  }
  return {type != nullptr ? type->dtype.value_or(DType::u8) : DType::u8, dtype->as_string(), shape, begin, end};
}

std::map<std::string, std::string> read_metadata(const fs::path& path, const Json& json) {
  std::map<std::string, std::string> metadata;
  const std::string where = path.string() + ": " + kMetadata;
  if (!json.is_object()) {
    throw CheckpointError(where, "the header entry is not valid", json.found(), "an object of strings");
  }
  for (const auto& [key, value] : json.members()) {
    if (!value.is_string()) {
      throw CheckpointError(where, "the value of " + Json(key).found() + " is not valid", value.found(), "a string");
    }
    metadata[key] = value.as_string();
  }
  return metadata;
}

/// The tensors must cover the data section exactly: no holes, no overlap, nothing beyond.
void check_layout(const fs::path& path, const std::map<std::string, SafetensorsFile::Entry>& entries,
                  uint64_t data_size) {
  std::vector<const std::pair<const std::string, SafetensorsFile::Entry>*> order;
  for (const auto& entry : entries) { order.push_back(&entry); }
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  uint64_t at = 0;
  for (const auto* entry : order) {
    const auto& [begin, end] = std::pair(entry->second.begin, entry->second.end);
    const std::string where = tensor_where(path, entry->first);
    if (begin != at) {
      throw CheckpointError(where, begin < at ? "its data overlap another tensor's" : "there is a hole before its data",
                            fmt::format("data offset {:d}", begin), std::to_string(at));
    }
    if (end > data_size) {
      throw CheckpointError(where, "its data end beyond the file", fmt::format("data offset {:d}", end),
                            fmt::format("at most {:d}", data_size));
    }
    at = end;
  }
  if (at != data_size) {
    throw CheckpointError(path.string(), "bytes after the last tensor", fmt::format("{:d} bytes of data", data_size),
                          std::to_string(at));
  }
}

double half_to_double(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  const double sign = (bits >> 15) != 0 ? -1.0 : 1.0;
  if (exponent == 31) { return fraction != 0 ? std::nan("") : sign * HUGE_VAL; }
  return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
}

/// Stored numbers need not be aligned: the header's length is the writer's choice.
template <class Stored, class Out, class Convert>
void convert_all(const uint8_t* bytes, std::vector<Out>& out, Convert convert) {
  for (size_t i = 0; i < out.size(); ++i) {
    Stored stored;
    std::memcpy(&stored, bytes + i * sizeof(Stored), sizeof(Stored));
    out[i] = convert(stored);
  }
}

template <class Stored> void widen(const uint8_t* bytes, std::vector<int64_t>& out) {
  convert_all<Stored>(bytes, out, [](Stored v) { return static_cast<int64_t>(v); });
}

}  // namespace

int64_t SafetensorsFile::Entry::numel() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::string SafetensorsFile::Entry::shape_text() const { return shape_string(shape); }

SafetensorsFile::SafetensorsFile(const fs::path& path) : file_(path, ExitCode::kCheckpoint) {
  if (file_.size() < 8) {
    throw CheckpointError(path.string(), "the file is cut short", fmt::format("{:d} bytes", file_.size()),
                          "at least 8, the length of the header");
  }
  uint64_t length = 0;
  std::memcpy(&length, file_.data(), 8);
  if (length > kLongestHeader) {
    throw CheckpointError(path.string(), "the length of the header (byte 0) is not valid", std::to_string(length),
                          fmt::format("at most {:d}", kLongestHeader));
  }
  if (length > file_.size() - 8) {
    throw CheckpointError(path.string(), "the file ends inside the header", fmt::format("{:d} bytes", file_.size()),
                          fmt::format("at least {:d}", 8 + length));
  }
  data_begin_ = 8 + length;
  const std::string_view text(reinterpret_cast<const char*>(file_.data()) + 8, length);
  if (const size_t values = count_values(text); values > kMostValues) {
    throw CheckpointError(path.string(), "the header has too many values", std::to_string(values),
                          fmt::format("at most {:d}", kMostValues));
  }
  Json header;
  try {
    header = parse_json(text, "header");
  } catch (const ConfigError& error) { throw CheckpointError(path.string(), error.what()); }
  if (!header.is_object()) {
    throw CheckpointError(path.string(), "the header is not valid", header.found(), "an object");
  }
  for (const auto& [name, json] : header.members()) {
    if (name == kMetadata) {
      metadata_ = read_metadata(path, json);
    } else {
      entries_.emplace(name, read_entry(tensor_where(path, name), json));
    }
  }
  check_layout(path, entries_, file_.size() - data_begin_);
}

const SafetensorsFile::Entry* SafetensorsFile::find(std::string_view name) const {
  const auto it = entries_.find(std::string(name));
  return it == entries_.end() ? nullptr : &it->second;
}

const SafetensorsFile::Entry& SafetensorsFile::at(std::string_view name) const {
  if (const Entry* entry = find(name)) { return *entry; }
  std::vector<std::string> names;
  for (const auto& [other, entry] : entries_) { names.push_back(other); }
  const std::string nearest = nearest_name(name, names);
  throw CheckpointError(tensor_where(path(), std::string(name)), "no such tensor", "nothing",
                        nearest.empty() ? "one of the file's " + plural(names.size(), "tensor")
                                        : "a name in the file (did you mean " + Json(nearest).found() + "?)");
}

std::vector<double> SafetensorsFile::doubles(std::string_view name) const {
  const Entry& entry = at(name);
  const uint8_t* bytes = data(entry);
  std::vector<double> out(static_cast<size_t>(entry.numel()));
  if (entry.dtype_text == "F64") {
    convert_all<double>(bytes, out, [](double v) { return v; });
  } else if (entry.dtype_text == "F32") {
    convert_all<float>(bytes, out, [](float v) { return static_cast<double>(v); });
  } else if (entry.dtype_text == "BF16") {
    convert_all<uint16_t>(bytes, out,
                          [](uint16_t v) { return static_cast<double>(std::bit_cast<float>(uint32_t{v} << 16)); });
  } else if (entry.dtype_text == "F16") {
    convert_all<uint16_t>(bytes, out, half_to_double);
  } else {
    throw CheckpointError(tensor_where(path(), std::string(name)), "wrong dtype", entry.dtype_text,
                          "F64, F32, BF16 or F16");
  }
  return out;
}

std::vector<int64_t> SafetensorsFile::integers(std::string_view name) const {
  const Entry& entry = at(name);
  const uint8_t* bytes = data(entry);
  const std::string& type = entry.dtype_text;
  static const std::map<std::string_view, void (*)(const uint8_t*, std::vector<int64_t>&)> readers = {
      {"I64", widen<int64_t>},  {"U64", widen<int64_t>}, {"I32", widen<int32_t>},
      {"U32", widen<uint32_t>}, {"I16", widen<int16_t>}, {"U16", widen<uint16_t>},
      {"I8", widen<int8_t>},    {"U8", widen<uint8_t>},  {"BOOL", widen<uint8_t>}};
  const auto reader = readers.find(type);
  if (reader == readers.end()) {
    throw CheckpointError(tensor_where(path(), std::string(name)), "wrong dtype", type, "an integer type or BOOL");
  }
  std::vector<int64_t> out(static_cast<size_t>(entry.numel()));
  reader->second(bytes, out);
  if (type == "U64" && std::any_of(out.begin(), out.end(), [](int64_t v) { return v < 0; })) {
    throw CheckpointError(tensor_where(path(), std::string(name)), "a value is too large", "2^63 or more",
                          "less than 2^63");
  }
  return out;
}

uint32_t write_safetensors(const fs::path& path, const std::vector<NamedTensor>& tensors,
                           const std::map<std::string, std::string>& metadata, DeviceReader* reader) {
  return write_safetensors(path, tensors, metadata, [&](const NamedTensor& t, const TakeBytes& take) {
    if (t.on_device) {
      HEBB_ASSERT(reader != nullptr);
      reader->read(t.tensor, take);
    } else {
      take(t.tensor.data, static_cast<size_t>(t.tensor.bytes()));
    }
  });
}

uint32_t write_safetensors(const fs::path& path, const std::vector<NamedTensor>& tensors,
                           const std::map<std::string, std::string>& metadata, const ReadTensor& read) {
  std::vector<const NamedTensor*> order;
  for (const NamedTensor& tensor : tensors) {
    HEBB_ASSERT(tensor.name != kMetadata);
    order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(), [](const NamedTensor* a, const NamedTensor* b) {
    const int64_t width_a = dtype_bytes(a->tensor.dtype), width_b = dtype_bytes(b->tensor.dtype);
    return width_a != width_b ? width_a > width_b : a->name < b->name;
  });
  std::vector<Json::Member> header;
  if (!metadata.empty()) {
    std::vector<Json::Member> strings;
    for (const auto& [key, value] : metadata) { strings.emplace_back(key, value); }
    header.emplace_back(kMetadata, Json::object(std::move(strings)));
  }
  std::map<std::string_view, int> names;
  int64_t at = 0;
  for (const NamedTensor* t : order) {
    HEBB_ASSERT(names.emplace(t->name, 0).second);
    Json shape = Json::array();
    for (int i = 0; i < t->tensor.shape.rank; ++i) { shape.push(t->tensor.shape[i]); }
    const int64_t begin = at;
    at += t->tensor.bytes();
    header.emplace_back(t->name, Json::object({{"dtype", dtype_name(t->tensor.dtype)},
                                               {"shape", std::move(shape)},
                                               {"data_offsets", Json::array({begin, at})}}));
  }
  std::string text = Json::object(std::move(header)).dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > kLongestHeader) {
    throw CheckpointError(path.string(), "the header is too long", fmt::format("{:d} bytes", text.size()),
                          fmt::format("at most {:d}", kLongestHeader));
  }
  FileWriter file(path);
  uint32_t crc = 0;
  const auto write = [&](const void* bytes, size_t size) {
    file.write(bytes, size);
    crc = crc32(bytes, size, crc);
  };
  const uint64_t length = text.size();
  write(&length, 8);
  write(text.data(), text.size());
  for (const NamedTensor* t : order) { read(*t, write); }
  file.close();
  return crc;
}

}  // namespace hebb
