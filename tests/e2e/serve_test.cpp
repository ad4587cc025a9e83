// `hebb serve` as its user starts it.
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
