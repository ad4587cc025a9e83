#include "core/weight_source.h"

#include "tests/temp_folder.h"
#include "tests/test.h"
#include "tests/thrown.h"

namespace {

constexpr const char* kIndex = "model.safetensors.index.json";

void write_shard(const fs::path& path, const std::vector<std::pair<std::string, float>>& values) {
  std::vector<float> storage;
  for (const auto& [name, value] : values) { storage.push_back(value); }
  std::vector<NamedTensor> tensors;
  for (size_t i = 0; i < values.size(); ++i) { tensors.push_back({values[i].first, {&storage[i], DType::f32, {1}}}); }
  write_safetensors(path, tensors);
}

std::string error_of(const fs::path& path) {
  return thrown<CheckpointError>([&] { WeightSource source(path); });
}

}  // namespace

FOLDER_TEST("weights come from a file or a folder with one file", "[fast]") {
  write_shard(folder / "model.safetensors", {{"b", 2.0f}, {"a", 1.0f}});
  for (const fs::path& path : {folder.path(), folder / "model.safetensors"}) {
    const WeightSource source(path);
    CHECK(source.names() == std::vector<std::string>{"a", "b"});
    CHECK(source.doubles("b") == std::vector<double>{2.0});
    CHECK(source.find("a")->dtype_text == "F32");
    CHECK(source.find("none") == nullptr);
    CHECK(source.path() == folder / "model.safetensors");
    CHECK_THROWS_WITH(source.doubles("c"),
                      Contains("tensor \"c\": no such tensor (found nothing, expected one of the 2 tensors)"));
    CHECK_THROWS_WITH(source.integers("embedding"), Contains("expected one of the 2 tensors)"));
  }
}

FOLDER_TEST("weights come from the shards that an index names", "[fast]") {
  write_shard(folder / "m-1.safetensors", {{"a", 1.0f}, {"c", 3.0f}});
  write_shard(folder / "m-2.safetensors", {{"b", 2.0f}});
  folder.write(
      kIndex,
      R"({"metadata": {"total_size": 12}, "weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors", "c": "m-1.safetensors"}})");
  for (const fs::path& path : {folder.path(), folder / kIndex}) {
    const WeightSource source(path);
    CHECK(source.names() == std::vector<std::string>{"a", "b", "c"});
    CHECK(source.doubles("b") == std::vector<double>{2.0});
    CHECK(source.file_of("c")->path() == folder / "m-1.safetensors");
  }
}

FOLDER_TEST("an index that does not fit its shards is an error", "[fast]") {
  const std::string index = (folder / kIndex).string();
  write_shard(folder / "m-1.safetensors", {{"a", 1.0f}, {"c", 3.0f}});
  const auto with = [&](const std::string& text) {
    folder.write(kIndex, text);
    return error_of(folder.path());
  };
  CHECK(with("{\"weight_map\": {\"a\": \"m-1.safetensors\"}}") ==
        (folder / "m-1.safetensors").string() +
            ": tensor \"c\": the index does not place this tensor here (found it in the shard, expected it in "
            "weight_map too)");
  CHECK_THAT(with("{\"weight_map\": {\"b\": \"m-1.safetensors\"}}"),
             Contains(index + ":1:22: \"b\": the shard lacks this tensor (found nothing, expected it in "));
  CHECK_THAT(with("{\"weight_map\": {\"a\": \"m-9.safetensors\"}}"),
             Contains("m-9.safetensors: cannot open: No such file"));
  CHECK_THAT(with("{\"weight_map\": {\"a\": \"../x\"}}"),
             Contains("the shard is not valid (found \"../x\", expected the name of a file in the index's folder)"));
  CHECK_THAT(with("{\"weight_map\": {\"a\": 3}}"), Contains("the shard is not valid (found 3"));
  CHECK(with("{}") == index + ": weight_map is not valid (found nothing, expected an object)");
  CHECK(with("{\"weight_map\": 3}") == index + ": weight_map is not valid (found 3, expected an object)");
  CHECK(with("{") == index + ":1:2: found end of input, expected string literal");
}

FOLDER_TEST("a folder must hold one kind of weights", "[fast]") {
  CHECK_THAT(error_of(folder.path()),
             Contains("cannot tell the weights of this folder (found neither, expected either model.safetensors or"));
  folder.write("model.safetensors", "");
  folder.write(kIndex, "{}");
  CHECK_THAT(error_of(folder.path()), Contains("(found both, expected either"));
  CHECK_THAT(error_of(folder / "none"), Contains("cannot open: No such file"));
}
