// Checkpoints in classes of transformers and flash-linear-attention beside the logits of these libraries.
#include <algorithm>

#include "core/hash.h"
#include "core/weight_source.h"
#include "inspect/convert/convert.h"
#include "inspect/convert/export_plan.h"
#include "inspect/trace_file.h"
#include "tests/layers/harness.h"
#include "tests/temp_folder.h"
#include "train/model_source.h"

namespace {

const fs::path kGolden = fs::path(HEBB_TEST_DATA) / "golden";

std::vector<fs::path> cases(const std::string& beginning) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(kGolden)) {
    if (entry.is_directory() && entry.path().filename().string().starts_with(beginning)) {
      found.push_back(entry.path());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

/// Of a folder in hebb's format.
std::vector<double> logits_of(const fs::path& folder, const fs::path& rows) {
  TestModel m(read_model_source(folder).model);
  m.load((folder / "model.safetensors").string());
  TraceOptions options;
  options.training = false;
  return m.run(read_trace_input(rows.string()), options).logits.values;
}

void check_logits(const fs::path& folder, const fs::path& golden) {
  const std::vector<double> expected = SafetensorsFile(golden / "expected.safetensors").doubles("logits");
  check_close("logits", logits_of(folder, golden / "rows.safetensors"), expected, 1e-9);
}

/// CRC-32 over names, shapes and bytes, in order of names, as tests/reference/foreign_models.py takes it.
int64_t digest(const fs::path& file) {
  const SafetensorsFile weights(file);
  uint32_t crc = 0;
  for (const auto& [name, entry] : weights.entries()) {
    const std::string head = name + " " + entry.shape_text();
    crc = crc32(head.data(), head.size(), crc);
    crc = crc32(weights.data(entry), entry.end - entry.begin, crc);
  }
  return crc;
}

void check_same_tensors(const fs::path& a, const fs::path& b) {
  CHECK(SafetensorsFile(a).entries().size() == SafetensorsFile(b).entries().size());
  CHECK(digest(a) == digest(b));
}

}  // namespace

FOLDER_TEST("models of other libraries give their logits", "[golden][fast]") {
  for (const fs::path& golden : cases("foreign-import-")) {
    INFO(golden.filename().string());
    const std::string name = golden.filename().string();
    fs::create_directories(folder / name);
    for (const char* file : {"config.json", "model.safetensors"}) {
      fs::copy_file(golden / file, folder / name / file);
    }
    convert_checkpoint(folder / name, folder / (name + "-in"));
    check_logits(folder / (name + "-in"), golden);
    // Out again: the same bytes.
    const std::string type = parse_json_file((golden / "config.json").string()).at("model_type").as_string();
    convert_checkpoint(folder / (name + "-in"), folder / (name + "-out"), {.model_class = type});
    check_same_tensors(golden / "model.safetensors", folder / (name + "-out") / "model.safetensors");
  }
  CHECK(cases("foreign-import-").size() == 10);
}

FOLDER_TEST("models in classes of other libraries give hebb's logits there", "[golden][fast]") {
  for (const fs::path& golden : cases("foreign-export-")) {
    const std::string name = golden.filename().string();
    INFO(name);
    check_logits(golden, golden);
    const Json exported = parse_json_file((golden / "exported.json").string());
    convert_checkpoint(golden, folder / name, {.model_class = exported.at("class").as_string()});
    // What the library has read.
    CHECK(digest(folder / name / "model.safetensors") == exported.at("digest").as_int());
    const Json config = parse_json_file((folder / name / "config.json").string());
    for (const auto& [key, value] : exported.at("config").members()) {
      INFO(key);
      CHECK((config.find(key) != nullptr && *config.find(key) == value));
    }
    // Back: the same function, and the same bytes on the next way out.
    convert_checkpoint(folder / name, folder / (name + "-in"));
    const std::vector<double> expected = SafetensorsFile(golden / "expected.safetensors").doubles("logits");
    check_close("logits", logits_of(folder / (name + "-in"), golden / "rows.safetensors"), expected, 1e-9);
    convert_checkpoint(folder / (name + "-in"), folder / (name + "-out"),
                       {.model_class = exported.at("class").as_string()});
    check_same_tensors(folder / name / "model.safetensors", folder / (name + "-out") / "model.safetensors");
  }
  CHECK(cases("foreign-export-").size() == 10);
}

namespace {

struct Copied {
  std::vector<std::vector<float>> memory;
  std::vector<NamedTensor> list;

  void add(const std::string& name, const Shape& shape, const std::vector<double>& values) {
    memory.emplace_back(values.begin(), values.end());
    list.push_back({name, {memory.back().data(), DType::f32, shape}});
  }
};

/// The tensors of a golden case in fp32.
Copied copied(const fs::path& golden) {
  const SafetensorsFile file(golden / "model.safetensors");
  Copied found;
  for (const auto& [name, entry] : file.entries()) {
    Shape shape;
    for (const int64_t size : entry.shape) { shape.dims[static_cast<size_t>(shape.rank++)] = size; }
    found.add(name, shape, file.doubles(name));
  }
  return found;
}

void write_case(const fs::path& folder, const Json& config, const Copied& tensors) {
  fs::create_directories(folder);
  write_file_atomic(folder / "config.json", config.dump());
  write_safetensors(folder / "model.safetensors", tensors.list);
}

}  // namespace

FOLDER_TEST("a class is asked for where a checkpoint of hebb goes to one", "[golden][fast]") {
  const fs::path foreign = kGolden / "foreign-import-llama", own = kGolden / "foreign-export-llama";
  fs::create_directories(folder / "in");
  for (const char* file : {"config.json", "model.safetensors"}) { fs::copy_file(foreign / file, folder / "in" / file); }
  CHECK_THROWS_WITH(convert_checkpoint(folder / "in", folder / "out", {.model_class = "llama"}),
                    Contains("--class: found llama, expected nothing"));
  CHECK_THROWS_WITH(convert_checkpoint(own, folder / "out", {.to = "pytorch", .model_class = "llama"}),
                    Contains("--class: found llama, expected nothing together with --to pytorch"));
  CHECK_THROWS_WITH(convert_checkpoint(own, folder / "out", {.model_class = "qwen3"}),
                    Contains("qwen3: model.layers.a.qk_norm: found \"none\", the class has \"rms\""));
}

FOLDER_TEST("the language model of a class with images is read alone", "[golden][fast]") {
  const fs::path golden = kGolden / "foreign-import-qwen3_5_text";
  const Json text = parse_json_file((golden / "config.json").string());
  Json config = parse_json(R"({"model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"],
    "image_token_id": 5, "vision_config": {"depth": 1}, "tie_word_embeddings": false})",
                           "config.json");
  config.set("text_config", text);
  Copied tensors = copied(golden);
  for (NamedTensor& t : tensors.list) {
    if (t.name.starts_with("model.")) { t.name.insert(6, "language_model."); }
  }
  for (const char* name : {"model.visual.pos_embed.weight", "mtp.norm.weight"}) { tensors.add(name, {1}, {3.0}); }
  write_case(folder / "images", config, tensors);
  convert_checkpoint(folder / "images", folder / "in");
  check_logits(folder / "in", golden);
  config.set("tie_word_embeddings", true);
  CHECK_THROWS_WITH(model_of_hf(config), Contains("text_config.tie_word_embeddings: found false, expected true"));
  config.set("video", 3);
  config.set("tie_word_embeddings", false);
  CHECK_THROWS_WITH(model_of_hf(config), Contains("video: found 3, expected no such key"));
}

FOLDER_TEST("a tied model whose file has another head is refused", "[golden][fast]") {
  const fs::path golden = kGolden / "foreign-import-llama-yarn";
  const Json config = parse_json_file((golden / "config.json").string());
  REQUIRE(config.at("tie_word_embeddings") == Json(true));
  Copied tensors = copied(golden);
  std::vector<double> embed = SafetensorsFile(golden / "model.safetensors").doubles("model.embed_tokens.weight");
  tensors.add("lm_head.weight", {13, 8}, embed);
  write_case(folder / "same", config, tensors);
  convert_checkpoint(folder / "same", folder / "in");
  check_logits(folder / "in", golden);
  embed[7] += 0.5;
  tensors.list.pop_back();
  tensors.add("lm_head.weight", {13, 8}, embed);
  write_case(folder / "other", config, tensors);
  CHECK_THROWS_WITH(convert_checkpoint(folder / "other", folder / "no"),
                    Contains("lm_head.weight is not model.embed_tokens.weight, although tie_word_embeddings"));
  CHECK(!fs::exists(folder / "no"));
}

FOLDER_TEST("biases that are not zero are refused, absent ones are zero", "[golden][fast]") {
  const fs::path golden = kGolden / "foreign-import-qwen2";
  const Json config = parse_json_file((golden / "config.json").string());
  Copied tensors = copied(golden);
  std::erase_if(tensors.list, [](const NamedTensor& t) { return t.name.ends_with("q_proj.bias"); });
  write_case(folder / "without", config, tensors);
  convert_checkpoint(folder / "without", folder / "in");
  check_logits(folder / "in", golden);
  tensors.add("model.layers.1.self_attn.q_proj.bias", {8}, {0, 0, 0, 0, 0, 0, 0, 1e-3});
  write_case(folder / "with", config, tensors);
  CHECK_THROWS_WITH(
      convert_checkpoint(folder / "with", folder / "no"),
      Contains("model.layers.1.self_attn.q_proj.bias is not all zeros: hebb's projections have no biases"));
}

FOLDER_TEST("what is written into weights is not rounded to BF16", "[golden][fast]") {
  // BF16 weights of Qwen3.5: 1 + w needs more digits.
  convert_checkpoint(kGolden / "foreign-import-qwen3_5_text", folder / "in", {.dtype = "bf16"});
  convert_checkpoint(folder / "in", folder / "bf16", {.dtype = "bf16", .model_class = "qwen3_5_text"});
  convert_checkpoint(folder / "bf16", folder / "back");
  const SafetensorsFile narrow(folder / "bf16/model.safetensors"), back(folder / "back/model.safetensors");
  CHECK(back.at("blocks.1.mixer.q_proj.weight").dtype == DType::bf16);
  CHECK(back.at("blocks.1.mixer.q_norm.weight").dtype == DType::f32);
  const std::vector<double> stored = narrow.doubles("model.layers.1.self_attn.q_norm.weight"),
                            read = back.doubles("blocks.1.mixer.q_norm.weight");
  for (size_t i = 0; i < stored.size(); ++i) { CHECK(read[i] == 1 + stored[i]); }
  // Out again, config.json names the wider format.
  convert_checkpoint(folder / "back", folder / "out", {.model_class = "qwen3_5_text"});
  CHECK(parse_json_file((folder / "out/config.json").string()).at("torch_dtype") == Json("float32"));
}
