// `hebb generate` as its user runs it.
#include <sstream>

#include "core/json.h"
#include "tests/e2e/command.h"

namespace {

std::vector<Json> json_lines(const std::string& text) {
  std::vector<Json> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) { lines.push_back(parse_json(line, "line")); }
  return lines;
}

}  // namespace

FOLDER_TEST("samples depend on prompt, its index and seed alone, not on their number or the other prompts") {
  train_on_bytes(folder);
  folder.write("p.txt", "One\r\n\nTwo\n");
  folder.write("q.jsonl",
               "{\"prompt\": \"One\", \"answers\": [\"x\"]}\n{\"prompt\": \"Two\"}\n{\"prompt\": \"One\"}\n");
  const std::string some = " --max-new-tokens 12 --temperature 1.5 --json";
  const std::vector<Json> lines =
      json_lines(output_of(folder, "generate run --prompts p.txt --num-samples 3 --seed 5" + some));
  REQUIRE(lines.size() == 6);
  for (size_t i = 0; i < 6; ++i) {
    CHECK(lines[i].at("prompt").as_string() == (i < 3 ? "One" : "Two"));
    CHECK(lines[i].at("seed").as_int() == 5 + static_cast<int64_t>(i % 3));
    CHECK(lines[i].at("prompt_tokens").as_int() == 3);
    const std::string& reason = lines[i].at("stop_reason").as_string();
    CHECK((reason == "length" || reason == "eos"));
    CHECK((reason == "eos" || lines[i].at("tokens").items().size() == 12));
  }
  CHECK(lines[0].at("tokens") != lines[1].at("tokens"));
  CHECK(lines[2].at("prompt_index") == Json(0));
  CHECK(lines[3].at("prompt_index") == Json(1));
  const std::vector<Json> other =
      json_lines(run_hebb(folder, "generate run --prompts q.jsonl --num-samples 2 --seed 6" + some).out);
  REQUIRE(other.size() == 6);
  CHECK(other[0] == lines[1]);
  CHECK(other[3] == lines[5]);
  CHECK(other[4].at("tokens") != other[0].at("tokens"));  // equal prompts at different places
  CHECK(json_lines(run_hebb(folder, "generate run --prompt Two --seed 7 --prompt-index 1" + some).out) ==
        std::vector<Json>{lines[5]});
  CHECK(json_lines(run_hebb(folder, "generate run --prompt One --seed 6" + some).out) == std::vector<Json>{lines[1]});
  const std::string text =
      output_of(folder, "generate run --prompts p.txt --num-samples 3 --seed 5 --max-new-tokens 12 --temperature 1.5");
  CHECK_THAT(text, Contains("==> prompt 1, seed 6 <==\nTwo" + lines[4].at("text").as_string() + "\n"));
}

FOLDER_TEST("one newline at the end of standard input is not part of the prompt") {
  train_on_bytes(folder);
  const auto prompt = [&](const std::string& input) {
    const CommandResult result = run_hebb(folder, "generate run --max-new-tokens 1 --json", input);
    CHECK_THAT(result.err, !Contains("Ctrl-D"));  // nobody types
    return json_lines(result.out).at(0).at("prompt");
  };
  CHECK(prompt("And") == Json("And"));
  CHECK(prompt("And\n") == Json("And"));
  CHECK(prompt("And\r\n") == Json("And"));
  CHECK(prompt("And\n\n") == Json("And\n"));
}

FOLDER_TEST("a sample ends before a stop text, which may span tokens") {
  train_on_bytes(folder);
  const std::string base = "generate run --prompt And --max-new-tokens 30 --temperature 1.5 --ignore-eos --seed 2";
  const std::string whole = json_lines(run_hebb(folder, base + " --json").out).at(0).at("text").as_string();
  REQUIRE(whole.size() > 12);
  const size_t at = 8;
  folder.write("stop", whole.substr(at, 3));
  const std::string stop = " --stop 'never there' --stop \"$(cat stop)\"";
  const Json cut = json_lines(run_hebb(folder, base + stop + " --json").out).at(0);
  CHECK(cut.at("stop_reason") == Json("stop"));
  const std::string& text = cut.at("text").as_string();
  CHECK(text.size() <= at);
  CHECK(whole.substr(0, text.size()) == text);
  CHECK(whole.substr(text.size(), 3) == whole.substr(at, 3));
  CHECK(run_hebb(folder, base + stop).out == "And" + text + "\n");
  CHECK(run_hebb(folder, base + " --stop 'xyzxyz'").out == "And" + whole + "\n");

  CHECK_THAT(run_hebb(folder, base + " --stop ''").err, Contains("--stop: found an empty text"));
  folder.write("none.txt", "\n\n");
  CHECK_THAT(run_hebb(folder, "generate run --prompts none.txt").err, Contains("none.txt: no prompt"));
  folder.write("bad.jsonl", "{\"text\": \"x\"}\n");
  check_error(folder, "generate run --prompts bad.jsonl", 3, Contains("bad.jsonl:1") && Contains("prompt"));
}
