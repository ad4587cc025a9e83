// `hebb serve` as its user starts it.
#include "core/files.h"
#include "data/tokenizer/tokenizer_export.h"
#include "tests/e2e/command.h"

FOLDER_TEST("serve takes a key from a file that nobody else may use") {
  train_on_bytes(folder);
  const auto key = folder.write("key", "secret\n");
  for (const auto others : {std::filesystem::perms::group_read, std::filesystem::perms::others_write}) {
    std::filesystem::permissions(key, std::filesystem::perms::owner_read | others);
    check_error(folder, "serve run --port 0 --api-key-file key", 2, Contains("chmod 600"));
  }
  std::filesystem::permissions(key, std::filesystem::perms::owner_read);
  folder.write("empty", "\n");
  std::filesystem::permissions(folder / "empty", std::filesystem::perms::owner_read);
  check_error(folder, "serve run --port 0 --api-key-file empty", 2, Contains("holds no key"));
  check_error(folder, "serve run --port 0 --api-key-file none", 3, Contains("none"));
}

FOLDER_TEST("serve says what it takes, and a signal ends it with code 0") {
  train_on_bytes(folder);
  folder.write("run.sh",
               std::string("'") + HEBB_BINARY + R"(' serve run --port 0 --max-streams 7 --max-batch 3 > first &
serve=$!
until grep -q . first || ! kill -0 $serve; do sleep 0.1; done
kill -TERM $serve
wait $serve
)");
  CHECK(std::system(("cd '" + folder.path().string() + "' && sh run.sh").c_str()) == 0);
  std::ifstream file(folder / "first");
  std::string line;
  std::getline(file, line);
  CHECK_THAT(line, Contains("serving r at http://127.0.0.1:") && Contains(": weights ") && Contains(" a stream ") &&
                       Contains("7 streams, 3 of them in a pass"));
}

FOLDER_TEST("serve's key is the line of the file, without its end") {
  train_on_bytes(folder);
  const auto key = folder.write("key", "secret\r\n");
  std::filesystem::permissions(key, std::filesystem::perms::owner_read);
  folder.write("run.sh", std::string("'") + HEBB_BINARY + R"(' serve run --port 0 --api-key-file key > first &
serve=$!
until grep -q . first || ! kill -0 $serve; do sleep 0.1; done
port=$(sed 's|.*http://127.0.0.1:\([0-9]*\)/.*|\1|;q' first)
for key in secret secre; do
  exec 3<> /dev/tcp/127.0.0.1/$port
  printf 'GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nConnection: close\r\n\r\n' $key >&3
  head -n 1 <&3 >> answers
  exec 3>&-
done
kill -TERM $serve
wait $serve
)");
  CHECK(std::system(("cd '" + folder.path().string() + "' && bash run.sh").c_str()) == 0);
  CHECK_THAT(read_file(folder / "answers"), Contains("200 OK") && Contains("401"));
}

FOLDER_TEST("BOS in front of ids needs a tokenizer that has it") {
  train_on_bytes(folder);
  Json tokenizer = parse_json(tokenizer_json_of(*Tokenizer::load({"bytes", "", false, true})), "tokenizer.json");
  tokenizer.set("added_tokens", Json::array());
  folder.write("bare/tokenizer.json", tokenizer.dump());
  const Json named = Json::object({{"type", "huggingface"}, {"file", "tokenizer.json"}, {"add_eos", false}});
  const Json model = parse_json_file((folder / "run/config.json").string()).at("model");
  folder.write("bare/config.json",
               Json::object({{"model", model}, {"data", Json::object({{"tokenizer", named}})}}).dump());
  for (const auto& entry : std::filesystem::directory_iterator(folder / "run/checkpoints")) {
    if (!entry.is_directory()) { continue; }
    std::filesystem::copy_file(entry.path() / "model.safetensors", folder / "bare/model.safetensors",
                               std::filesystem::copy_options::overwrite_existing);
  }
  check_error(folder, "serve bare --port 0 --prepend-bos", 2, Contains("--prepend-bos: found a tokenizer without BOS"));
}
