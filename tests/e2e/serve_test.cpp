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
