#include "core/append_file.h"

#include "tests/temp_folder.h"
#include "tests/test.h"

FOLDER_TEST("a file that was deleted, replaced or cut while it grows is noticed, and written again as it was",
            "[fast]") {
  const fs::path path = folder / "a/log";
  folder.write("a/log", "one\n");
  AppendFile file(path);
  file.append("two\n");
  CHECK(file.sync().empty());
  fs::remove_all(folder / "a");
  file.append("three\n");
  CHECK(file.sync() == path.string() + " was deleted; the file is written again");
  CHECK(read_file(path) == "one\ntwo\nthree\n");

  fs::rename(path, folder / "kept");
  folder.write("a/log", "other");
  file.append("four\n");
  CHECK(file.sync() == path.string() + " was replaced; what lay there is log.replaced; the file is written again");
  CHECK(read_file(path) == "one\ntwo\nthree\nfour\n");
  CHECK(read_file(folder / "a/log.replaced") == "other");
  fs::remove(path);
  folder.write("a/log", "third");
  CHECK_THAT(file.sync(), Contains("what lay there is log.replaced2"));
  file.append("five\n");
  CHECK(file.sync().empty());
  CHECK(read_file(path) == "one\ntwo\nthree\nfour\nfive\n");

  fs::resize_file(path, 3);
  CHECK(file.sync() == path.string() + " was cut: found 3 bytes, expected 24");
  CHECK(file.sync().empty());
}
