// The pages in docs/ against the program: options of --help, keys of evaluations, links.
#include <cctype>
#include <map>
#include <regex>
#include <set>

#include "core/fields.h"
#include "core/files.h"
#include "eval/evaluation.h"
#include "layers/layer.h"
#include "tests/paths.h"
#include "tests/temp_folder.h"
#include "tests/test.h"
#include "tests/train/process.h"
#include "train/run_config.h"

namespace hebb {
struct TaskKeys {
  EvalTask* task;
};
void fields(Fields& f, TaskKeys& t) { t.task->fields(f); }
}  // namespace hebb

namespace {

const fs::path root = HEBB_SOURCE;

std::set<std::string> matches(const std::string& text, const std::regex& pattern, size_t group = 0) {
  std::set<std::string> found;
  for (std::sregex_iterator it(text.begin(), text.end(), pattern), end; it != end; ++it) { found.insert((*it)[group]); }
  return found;
}

std::string help_of(std::vector<std::string> verb) {
  const TempFolder folder;
  verb.push_back("--help");
  const Result r = testing::run_hebb(verb, folder / "help");
  REQUIRE(r.code == 0);
  return r.out;
}

/// Names in the first column of "Subcommands:".
std::set<std::string> verbs_of(const std::string& help) {
  const size_t at = help.find("Subcommands:");
  return at == std::string::npos ? std::set<std::string>() : matches(help.substr(at), std::regex("\n  ([a-z-]+) "), 1);
}

/// --long-names that a verb or one of its own verbs takes.
std::set<std::string> options_of(const std::vector<std::string>& verb) {
  const std::string help = help_of(verb);
  std::set<std::string> options;
  for (const std::string& column : matches(help, std::regex("\n  (-[-a-z0-9,]+)"), 1)) {
    options.merge(matches(column, std::regex("--[a-z][a-z0-9-]*")));
  }
  for (const std::string& inner : verbs_of(help)) {
    std::vector<std::string> words = verb;
    words.push_back(inner);
    options.merge(options_of(words));
  }
  return options;
}

/// Options that a text writes; "--train.steps" is a configuration key and none.
std::set<std::string> written_options(const std::string& text) {
  return matches(text, std::regex("(^|[^-\\w])(--[a-z][a-z0-9-]*)(?![-\\w.])"), 2);
}

std::string missing_from(const std::set<std::string>& all, const std::set<std::string>& known) {
  std::string list;
  for (const std::string& name : all) { list += known.count(name) ? "" : name + " "; }
  return list;
}

std::vector<fs::path> pages() {
  std::vector<fs::path> list = {root / "README.md"};
  for (const auto& entry : fs::recursive_directory_iterator(root / "docs")) {
    if (entry.path().extension() == ".md") { list.push_back(entry.path()); }
  }
  return list;
}

/// A page without its code blocks, whose brackets are no links.
std::string prose(const fs::path& page) { return std::regex_replace(read_file(page), std::regex("```[^`]*```"), ""); }

/// Heading as the fragment of a link.
std::string fragment(const std::string& heading) {
  std::string text;
  for (const unsigned char c : heading) {
    if (std::isalnum(c) || c == '-' || c == '_' || c >= 0x80) {
      text += static_cast<char>(std::tolower(c));
    } else if (c == ' ') {
      text += '-';
    }
  }
  return text;
}

struct Link {
  std::string text;
  fs::path file;
  std::string fragment;
};

std::vector<Link> links(const fs::path& page) {
  std::vector<Link> list;
  for (const std::string& target : matches(prose(page), std::regex("\\]\\(([^)\\s]+)\\)"), 1)) {
    if (target.find("://") == std::string::npos) {
      const size_t hash = std::min(target.find('#'), target.size());
      const fs::path file = hash == 0 ? page : (page.parent_path() / target.substr(0, hash)).lexically_normal();
      list.push_back({target, file, target.substr(std::min(hash + 1, target.size()))});
    }
  }
  return list;
}

}  // namespace

TEST_CASE("the page of every verb names the options of its --help, and no others", "[fast]") {
  const std::set<std::string> verbs = verbs_of(help_of({}));
  CHECK(verbs.size() > 10);
  for (const std::string& verb : verbs) {
    INFO("docs/verbs/" << verb << ".md");
    const std::set<std::string> known = options_of({verb});
    const std::set<std::string> written = written_options(read_file(root / "docs/verbs" / (verb + ".md")));
    std::set<std::string> expected = known;
    expected.erase("--help");
    CHECK(missing_from(expected, written) == "");
    CHECK(missing_from(written, known) == "");
  }
}

TEST_CASE("commands in the documentation use options that exist", "[fast]") {
  std::map<std::string, std::set<std::string>> options;
  for (const std::string& verb : verbs_of(help_of({}))) { options[verb] = options_of({verb}); }
  size_t commands = 0;
  for (const fs::path& page : pages()) {
    const std::string text = read_file(page);
    const std::regex command("hebb ([a-z]+)([^\n`|#&;]*)");
    for (std::sregex_iterator it(text.begin(), text.end(), command), end; it != end; ++it) {
      if (const auto verb = options.find((*it)[1]); verb != options.end()) {
        INFO(page.string() << ": " << it->str());
        CHECK(missing_from(written_options((*it)[2]), verb->second) == "");
        ++commands;
      }
    }
  }
  CHECK(commands > 40);
}

TEST_CASE("every kind of evaluation has a row in docs/verbs/eval.md, whose page names its keys", "[fast]") {
  const fs::path folder = root / "docs/verbs";
  const std::string verb = read_file(folder / "eval.md");
  const auto names = [](const std::string& page, const std::string& path) {  // `key`, `of.key` or "key"
    const std::string key = path.substr(path.rfind('.') + 1);
    return std::regex_search(page, std::regex("[`\"]([A-Za-z_]+\\.)*" + key + "[`\"]"));
  };
  for (const EvalKind& kind : eval_kinds()) {
    INFO(kind.name << " of eval/evaluation.cpp");
    std::smatch row;
    const bool has_row = std::regex_search(
        verb, row, std::regex("\n\\| `" + kind.name + "` \\|[^\n]*\\]\\((\\.\\./evaluations/[a-z-]+\\.md)\\)"));
    CHECK(has_row);
    if (!has_row) { continue; }
    INFO(row[1]);
    const std::string page = read_file(folder / row[1].str());
    CHECK_THAT(page, Contains("## `" + kind.name + "`\n"));
    const std::unique_ptr<EvalTask> task = kind.make();
    TaskKeys keys{task.get()};
    for (const Fields::Description& d : Fields::describe_value("", keys)) {
      const bool is_of_data = d.path.starts_with("data.");  // the same for all kinds
      INFO("no page names the key " << d.path);
      CHECK(names(is_of_data ? verb : page, d.path));
    }
  }
  const Json entry = parse_json(R"({"evaluations": [{"name": "e", "kind": "efficiency"}]})", "list");
  const Json resolved = resolve_evaluations(entry, "");
  const std::string cost = read_file(root / "docs/evaluations/cost.md");
  for (const auto& [key, value] : resolved.at("evaluations").items()[0].members()) {
    INFO("no page names the key " << key);
    CHECK((names(verb, key) || names(cost, key)));
  }
}

TEST_CASE("every type of layer has a row in docs/layers/README.md, whose page names its keys", "[fast]") {
  const fs::path folder = root / "docs/layers";
  const std::string index = read_file(folder / "README.md");
  for (const LayerType& type : layer_types()) {
    INFO(type.name << " of layers/registry.cpp");
    std::smatch row;
    const bool has_row = std::regex_search(
        index, row, std::regex("\n\\|[^|\n]*`" + type.name + "`[^|\n]*\\|[^\n]*\\]\\(([a-z0-9_-]+\\.md)\\)"));
    CHECK(has_row);
    if (!has_row) { continue; }
    INFO("docs/layers/" << row[1]);
    const std::string page = read_file(folder / row[1].str());
    const std::unique_ptr<LayerConfig> config = type.make();
    for (const Fields::Description& d : Fields::describe_value("", *config)) {
      if (d.path.find("rope.") != std::string::npos) { continue; }  // the same in all: configuration-reference.md
      INFO("the page does not name the key " << d.path);
      CHECK(std::regex_search(page, std::regex("\\b" + d.path.substr(d.path.rfind('.') + 1) + "\\b")));
    }
  }
}

TEST_CASE("links of the documentation lead somewhere, and every page can be reached from the README", "[fast]") {
  std::set<fs::path> reached, open = {root / "README.md"};
  while (!open.empty()) {
    const fs::path page = *open.begin();
    open.erase(open.begin());
    reached.insert(page);
    for (const Link& link : links(page)) {
      INFO(page.string() << ": " << link.text);
      REQUIRE(fs::exists(link.file));
      if (!link.fragment.empty()) {
        std::set<std::string> headings;
        for (const std::string& heading : matches(prose(link.file), std::regex("\n#+ ([^\n]+)"), 1)) {
          headings.insert(fragment(heading));
        }
        CHECK(headings.count(link.fragment) == 1);
      }
      if (link.file.extension() == ".md" && reached.count(link.file) == 0) { open.insert(link.file); }
    }
  }
  for (const fs::path& page : pages()) {
    INFO(page.string());
    CHECK(reached.count(page) == 1);
  }
}
