#include "core/path_list.h"

#include "tests/temp_folder.h"
#include "tests/test.h"

namespace {

using Names = std::vector<std::string>;

Names names(const std::vector<fs::path>& paths) {
  Names out;
  for (const fs::path& path : paths) { out.push_back(path.filename().string()); }
  return out;
}

}  // namespace

FOLDER_TEST("expand_paths lists files, folders and patterns in byte order", "[fast]") {
  for (const char* name : {"b/2.txt", "b/10.txt", "a/1.txt", "a/.hidden", "a/z.bin", "a/sub/3.txt", "odd[1].txt"}) {
    folder.write(name, "x");
  }
  const std::string root = folder.path().string();
  CHECK(names(expand_paths(root + "/a/1.txt")) == Names{"1.txt"});
  CHECK(names(expand_paths(root + "/a")) == Names{"1.txt", "z.bin"});
  CHECK(names(expand_paths(root + "/*/*.txt")) == Names{"1.txt", "10.txt", "2.txt"});
  CHECK(names(expand_paths(root + "/[ab]/?.txt")) == Names{"1.txt", "2.txt"});
  CHECK(names(expand_paths(root + "/odd[1].txt")) == Names{"odd[1].txt"});
  fs::create_directory_symlink(root, root + "/a/loop");
  CHECK(names(expand_paths(root + "/**/*.txt")) == Names{"1.txt", "3.txt", "10.txt", "2.txt", "odd[1].txt"});
  CHECK(names(expand_paths(root + "/a/**/*")) == Names{"1.txt", "3.txt", "z.bin"});
  CHECK(names(expand_paths(root + "/**/**/?.txt")) == Names{"1.txt", "3.txt", "2.txt"});
  CHECK_THROWS_AS(expand_paths(root + "/**/*.none"), MissingFileError);
  CHECK_THROWS_AS(expand_paths(root + "/*.none"), DataError);
  CHECK_THROWS_WITH(expand_paths(root + "/*.none"), Contains("no file matches; expected a file"));
  CHECK_THROWS_WITH(expand_paths(root + "/none/*"), Contains("no file matches; expected a file"));
  CHECK_THROWS_AS(expand_paths(root + "/none/*"), MissingFileError);
}

FOLDER_TEST("a component of a path that exists under its own name is no pattern", "[fast]") {
  for (const auto& [name, decoy] : std::vector<std::pair<std::string, std::string>>{
           {"Title [2004]", "Title 2"}, {"[ab]", "a"}, {"star*", "star1"}, {"what?", "what1"}, {"**", "any"}}) {
    INFO(name);
    folder.write(name + "/one.txt", "");
    folder.write(name + "/below[1]/two.txt", "");
    folder.write(decoy + "/three.txt", "");
    folder.write(decoy + "/below1/four.txt", "");
    const std::string path = (folder / name).string();
    CHECK(expand_paths(path) == std::vector{folder / name / "one.txt"});
    CHECK(expand_paths(path + "/*.txt") == std::vector{folder / name / "one.txt"});
    CHECK(names(expand_paths(path + "/**/*.txt")) == Names{"two.txt", "one.txt"});
    CHECK(expand_paths(path + "/below[1]/*") == std::vector{folder / name / "below[1]/two.txt"});
    CHECK_THROWS_AS(expand_paths(path + "/three.txt"), MissingFileError);
    CHECK(files_matching(folder / name, "*.txt") == std::vector{folder / name / "one.txt"});
    std::vector<fs::path> links;
    CHECK(names(files_below(folder / name, links)) == Names{"two.txt", "one.txt"});
    CHECK(links.empty());
    CHECK_THROWS_AS(files_matching(folder / name, "*.none"), MissingFileError);
  }
  // Without such an entry the same text is a pattern.
  CHECK(names(expand_paths((folder / "Title [2]/*.txt").string())) == Names{"three.txt"});
  CHECK(names(expand_paths((folder / "[ab]*/*.txt").string())) == Names{"three.txt", "three.txt"});
}

FOLDER_TEST("relative paths, hidden names, links and many ** in a row", "[fast]") {
  folder.write("a/.hidden.txt", "");
  folder.write("a/b/c.txt", "");
  fs::create_symlink("nothing", folder / "a/broken.txt");
  const std::string root = folder.path().string();
  CHECK(names(expand_paths(root + "/a/*")) == Names{"c.txt", "broken.txt"});  // of b/ too
  CHECK(names(expand_paths(root + "/a/.hid*")) == Names{".hidden.txt"});
  std::string many = root;
  for (int i = 0; i < 60; ++i) { many += "/**"; }
  CHECK(names(expand_paths(many + "/*.txt")) == Names{"c.txt", "broken.txt"});
  CHECK_THROWS_AS(expand_paths(""), MissingFileError);
  CHECK_THROWS_AS(expand_paths(root + "/a/b/c.txt/*"), MissingFileError);
  fs::create_directory(folder / "empty");
  std::vector<fs::path> links;
  CHECK_THROWS_WITH(files_below(folder / "empty", links), Contains("no file in this folder or below it"));
  fs::create_directory_symlink(folder / "empty", folder / "a/link");
  CHECK(names(files_below(folder / "a", links)) == Names{"c.txt", "broken.txt"});
  CHECK(names(links) == Names{"link"});
}

FOLDER_TEST("links to folders are listed in byte order, those in folders below among them", "[fast]") {
  folder.write("a/b/c.txt", "");
  folder.write("other/file", "");
  for (const char* link : {"a/z", "a/b/m"}) { fs::create_directory_symlink(folder / "other", folder / link); }
  std::vector<fs::path> links;
  CHECK(names(files_below(folder / "a", links)) == Names{"c.txt"});
  CHECK(links == std::vector{folder / "a/b/m", folder / "a/z"});
}
