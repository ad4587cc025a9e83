#include <functional>
#include <numeric>
#include <regex>
#include <set>

#include "core/weight_source.h"
#include "inspect/convert/convert.h"
#include "layers/model.h"
#include "tests/page_blocks.h"
#include "tests/temp_folder.h"
#include "tests/test.h"
#include "tests/thrown.h"
#include "train/model_source.h"
#include "train/run_config.h"
#include "train/tensor_match.h"

using Catch::StartsWith;

namespace {

/// A model object with an integer buffer (vq), fast weights (fwpkm) and a state that is not trained (ham).
const char* const kModel = R"({"vocab_size": 11, "hidden_size": 8, "num_layers": 2, "tie_embeddings": true, "layers": {
  "vq": {"type": "vq", "num_heads": 1, "head_dim": 4, "codebook_size": 3},
  "ham": {"type": "ham", "rnn": {"num_heads": 1, "key_head_dim": 4, "value_head_dim": 4},
          "kv": {"num_heads": 1, "key_head_dim": 4, "value_head_dim": 4}},
  "mem": {"type": "fwpkm", "num_subkeys": 3, "key_dim": 4, "value_dim": 4, "top_k": 2, "chunk_size": 4},
  "mlp": {"type": "swiglu", "intermediate_size": 6}},
  "pattern": [{"mixer": "vq", "ffn": "mlp", "memory": "mem"}, {"mixer": "ham", "ffn": "mlp"}]})";

/// A folder as a checkpoint without a run: the model and weights with values of their own.
void write_checkpoint(const TempFolder& folder, const std::string& name, const std::string& config = kModel) {
  folder.write(name + "/config.json", config);
  const Model model(read_model(parse_json(config, "config.json")));
  std::vector<std::vector<float>> values;
  std::vector<std::vector<int32_t>> counts;
  std::vector<NamedTensor> tensors;
  for (const ExpectedTensor& e : tensors_of(model.params())) {
    const auto count = static_cast<size_t>(e.shape.numel());
    if (e.is_integer) {
      counts.emplace_back(count, 70000);  // beyond what bf16 holds
      tensors.push_back({e.name, {counts.back().data(), DType::i32, e.shape}});
    } else {
      values.emplace_back(count, 0.1F * static_cast<float>(values.size() + 1));
      tensors.push_back({e.name, {values.back().data(), DType::f32, e.shape}});
    }
  }
  write_safetensors(folder / name / "model.safetensors", tensors);
}

std::set<std::string> files_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) { names.insert(entry.path().filename().string()); }
  return names;
}

std::string python_file() { return read_file(fs::path(HEBB_SOURCE) / "inspect/convert/modeling_hebb.py"); }

}  // namespace

FOLDER_TEST("a PyTorch folder has hebb's tensors, the model and the file of the tree", "[fast]") {
  write_checkpoint(folder, "checkpoint");
  const std::string said = convert_checkpoint(folder / "checkpoint", folder / "out", {"", "pytorch"});
  CHECK_THAT(said, StartsWith("for PyTorch: ") &&
                       Contains("model.safetensors, generation_config.json, config.json, README.md, modeling_hebb.py"));
  CHECK(files_in(folder / "out") == std::set<std::string>{"README.md", "config.json", "generation_config.json",
                                                          "model.safetensors", "modeling_hebb.py"});
  CHECK(read_file(folder / "out/modeling_hebb.py") == python_file());

  const Json config = parse_json_file((folder / "out/config.json").string());
  CHECK(config.at("model") == Fields::write(read_model(parse_json(kModel, "model.json"))));  // with all defaults
  CHECK(config.at("model_type") == Json("hebb"));
  CHECK(config.at("architectures") == Json::array({"HebbForCausalLM"}));
  CHECK(config.at("auto_map").at("AutoConfig") == Json("modeling_hebb.HebbConfig"));
  CHECK(config.at("auto_map").at("AutoModelForCausalLM") == Json("modeling_hebb.HebbForCausalLM"));
  for (const char* key : {"dtype", "torch_dtype"}) { CHECK(config.at(key) == Json("float32")); }
  CHECK(config.at("tie_word_embeddings") == Json(false));
  CHECK(config.at("vocab_size") == Json(11));

  const SafetensorsFile before(folder / "checkpoint/model.safetensors"), after(folder / "out/model.safetensors");
  REQUIRE(before.entries().size() == after.entries().size());
  for (const auto& [name, entry] : before.entries()) {
    INFO(name);
    const SafetensorsFile::Entry& other = after.at(name);
    CHECK(other.dtype == entry.dtype);
    CHECK(other.shape == entry.shape);
    const int64_t bytes =
        std::accumulate(entry.shape.begin(), entry.shape.end(), dtype_bytes(entry.dtype), std::multiplies<int64_t>());
    CHECK(std::equal(before.data(entry), before.data(entry) + bytes, after.data(other)));
  }
  CHECK_THAT(read_file(folder / "out/model.safetensors").substr(0, 4096), Contains(R"("format":"pt")"));
}

FOLDER_TEST("hebb reads a PyTorch folder as one of its own", "[fast]") {
  write_checkpoint(folder, "checkpoint");
  convert_checkpoint(folder / "checkpoint", folder / "out", {"", "pytorch"});
  const ModelSource source = read_model_source(folder / "out");
  CHECK(Fields::write(source.model) == Fields::write(read_model(parse_json(kModel, "model.json"))));
  convert_checkpoint(folder / "out", folder / "again", {"", "pytorch"});
  for (const char* name : {"config.json", "model.safetensors", "modeling_hebb.py"}) {
    INFO(name);
    CHECK(read_file(folder / "out" / name) == read_file(folder / "again" / name));
  }
}

FOLDER_TEST("a PyTorch folder in bf16 keeps whole numbers", "[fast]") {
  write_checkpoint(folder, "checkpoint");
  convert_checkpoint(folder / "checkpoint", folder / "out", {"bf16", "pytorch"});
  const SafetensorsFile file(folder / "out/model.safetensors");
  CHECK(file.at("blocks.0.mixer.idle").dtype == DType::i32);
  CHECK(*reinterpret_cast<const int32_t*>(file.data(file.at("blocks.0.mixer.idle"))) == 70000);
  CHECK(file.at("embed.weight").dtype == DType::bf16);
  CHECK(parse_json_file((folder / "out/config.json").string()).at("dtype") == Json("bfloat16"));
}

FOLDER_TEST("what cannot become a PyTorch folder is an error that leaves nothing behind", "[fast]") {
  write_checkpoint(folder, "checkpoint");
  const auto error = [&](const fs::path& source, const fs::path& target) {
    return thrown<Error>([&] { convert_checkpoint(source, target, {"", "pytorch"}); });
  };
  folder.write("foreign/config.json", R"({"model_type": "llama"})");
  CHECK_THAT(error(folder / "foreign", folder / "out"), Contains("--to: found pytorch, expected nothing"));
  CHECK_THAT(error(folder / "checkpoint/config.json", folder / "out"), Contains("no weights to convert"));
  folder.write("full/other.txt", "kept");
  CHECK_THAT(error(folder / "checkpoint", folder / "full"), Contains("exists and is not an empty folder"));
  CHECK(read_file(folder / "full/other.txt") == "kept");
  write_checkpoint(folder, "other");
  fs::copy_file(folder / "other/model.safetensors", folder / "wrong.safetensors");
  folder.write("config.json", std::regex_replace(kModel, std::regex("\"vocab_size\": 11"), "\"vocab_size\": 12"));
  CHECK_THAT(error(folder / "wrong.safetensors", folder / "out"), Contains("embed.weight"));
  CHECK_FALSE(fs::exists(folder / "out"));
}

TEST_CASE("the model of the page's examples is one", "[fast]") {
  const std::vector<std::string> blocks = page_blocks("pytorch.md");
  REQUIRE(blocks.size() == 1);
  const auto run = Fields::read<RunConfig>(parse_json(blocks[0], "recall.json"), "");
  CHECK(run.model.layers.size() == 3);
}

TEST_CASE("every layer type has a class in the PyTorch file", "[fast]") {
  const std::string text = python_file();
  const size_t begin = text.find("\nLAYERS = {");
  REQUIRE(begin != std::string::npos);
  const std::string table = text.substr(begin, text.find('}', begin) - begin);
  const std::regex entry("\"([a-z0-9_]+)\": ([A-Za-z0-9]+)");
  std::set<std::string> found, expected;
  for (std::sregex_iterator it(table.begin(), table.end(), entry), end; it != end; ++it) {
    found.insert((*it)[1]);
    CHECK(text.find("\nclass " + (*it)[2].str() + "(") != std::string::npos);
  }
  for (const LayerType& type : layer_types()) {
    if (std::string(type.name).find("test") == std::string::npos) { expected.insert(std::string(type.name)); }
  }
  CHECK(found == expected);
}
