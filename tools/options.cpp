#include "tools/options.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>

#include "core/error.h"
#include "core/suggest.h"
#include "data/utf8.h"

namespace hebb {
namespace {

// "\n", "\r", "\t", "\0" and "\\" in a separator, which shells make hard to type.
std::string unescape(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      out += text[i];
      continue;
    }
    ++i;
    switch (text[i]) {
      case 'n': out += '\n'; break;
      case 'r': out += '\r'; break;
      case 't': out += '\t'; break;
      case '0': out += '\0'; break;
      case '\\': out += '\\'; break;
      default: (out += '\\') += text[i];
    }
  }
  return out;
}

/// Writes an integer such as 1e6 in digits. Returns what is wrong, or "".
std::string read_integer(std::string& text, bool is_unsigned) {
  if (is_unsigned && text.find('-') != std::string::npos) {
    return "found \"" + text + "\", expected an integer >= 0";
  }
  if (!text.empty() && text.find_first_not_of("-0123456789") == std::string::npos) {
    errno = 0;
    is_unsigned ? static_cast<void>(std::strtoull(text.c_str(), nullptr, 10))
                : static_cast<void>(std::strtoll(text.c_str(), nullptr, 10));
    return errno == ERANGE ? "found " + text + ", expected an integer of 64 bits" : "";
  }
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  constexpr double kExact = 9007199254740992.0;  // 2^53
  if (end == text.c_str() || *end != '\0' || value != std::floor(value) || !(std::abs(value) <= kExact)) {
    return "found \"" + text + "\", expected an integer";
  }
  text = std::to_string(static_cast<int64_t>(value));
  return "";
}

CLI::Option* accept_integers(CLI::Option* option, bool is_unsigned) {
  return option->transform(CLI::Validator([=](std::string& text) { return read_integer(text, is_unsigned); }, ""));
}

/// "1.5" -> "1.5", "3" -> "3" for messages.
std::string text_of(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

CLI::Option* check_number(CLI::Option* option, const std::string& range, const std::function<bool(double)>& is_in_range) {
  const bool is_unsigned = option->get_type_name() == "UINT", is_integer = is_unsigned || option->get_type_name() == "INT";
  return option->transform(CLI::Validator(
      [=](std::string& text) -> std::string {
        std::string number = text;
        const bool is_read = !is_integer || read_integer(number, is_unsigned).empty();
        char* end = nullptr;
        const double value = std::strtod(number.c_str(), &end);
        if (!is_read || end == number.c_str() || *end != '\0' || !std::isfinite(value) || !is_in_range(value)) {
          return "found " + text + ", expected " + (is_integer ? "an integer " : "a number ") + range;
        }
        text = number;
        return "";
      },
      ""));
}

}  // namespace

CLI::Option* at_least(CLI::Option* option, double lowest) {
  return check_number(option, ">= " + text_of(lowest), [=](double v) { return v >= lowest; });
}
CLI::Option* above(CLI::Option* option, double bound) {
  return check_number(option, "> " + text_of(bound), [=](double v) { return v > bound; });
}
CLI::Option* between(CLI::Option* option, double lowest, double highest) {
  return check_number(option, "from " + text_of(lowest) + " to " + text_of(highest),
                      [=](double v) { return v >= lowest && v <= highest; });
}

CLI::Option* one_of(CLI::Option* option, const std::vector<std::string>& names) {
  std::string list, braces;
  for (const std::string& name : names) {
    list += (list.empty() ? "" : ", ") + name;
    braces += (braces.empty() ? "" : ",") + name;
  }
  return option->check(CLI::Validator(
      [=](std::string& text) -> std::string {
        if (std::find(names.begin(), names.end(), text) != names.end()) {
          return "";
        }
        const std::string nearest = nearest_name(text, names);
        return "found \"" + text + "\", expected one of " + list + (nearest.empty() ? "" : " (did you mean " + nearest + "?)");
      },
      "{" + braces + "}"));
}

CLI::Option* accept_exponents(CLI::Option* option) { return accept_integers(option, false); }
CLI::Option* accept_unsigned(CLI::Option* option) { return accept_integers(option, true); }

void add_text_input_options(CLI::App& app, TextInputOptions& input) {
  using Format = TextInputOptions::Format;
  app.add_option("INPUT", input.inputs,
                 "Text files, folders (their files) or quoted patterns (*, ?, [..]); gzip and zstd are recognised")
      ->required()
      ->type_name("PATH")
      ->default_str("");
  one_of(app.add_option_function<std::string>(
             "--format",
             [&input](const std::string& name) {
               input.format = name == "text" ? Format::text : name == "jsonl" ? Format::jsonl : Format::automatic;
             },
             "What the files hold: text, jsonl, or auto = JSONL where the name says so (.jsonl, .ndjson, .json)"),
         {"auto", "text", "jsonl"})
      ->type_name("NAME")
      ->default_str("auto");
  app.add_option("--field", input.field, "JSONL member with the text (without it: \"text\", else \"content\")")
      ->type_name("NAME");
  app.add_option_function<std::string>(
         "--split", [&input](const std::string& text) { input.split = unescape(text); },
         "Separator between the documents of a text file; \\n, \\r, \\t, \\0, \\\\ are escapes (without it: one file "
         "is one "
         "document)")
      ->type_name("TEXT");
  one_of(app.add_option_function<std::string>(
             "--invalid-utf8", [&input](const std::string& name) { input.replace_invalid = name == "replace"; },
             "Invalid UTF-8: error, or replace by U+FFFD"),
         {"error", "replace"})
      ->type_name("NAME")
      ->default_str("error");
  accept_unsigned(app.add_option("--skip-bad", input.skip_bad,
                                 "Bad lines, documents and streams that may be left out before it is an error"))
      ->type_name("INT");
}

void require_utf8(const std::string& where, std::string_view text) {
  if (const size_t at = utf8_first_invalid(text); at != std::string_view::npos) {
    throw DataError(where + ": byte " + std::to_string(at), "invalid UTF-8", "bytes " + hex_bytes(text.substr(at, 1)), "text in UTF-8");
  }
}

TokenizerConfig tokenizer_config(const std::string& name) {
  TokenizerConfig config;
  config.type = name == "bytes" ? "bytes" : "sentencepiece";
  config.file = name == "bytes" ? "" : name;
  return config;
}

CLI::Option* add_threads_option(CLI::App& app, int& threads) {
  return between(app.add_option("--threads", threads, "Worker threads; 0 = the cores that this process may use"), 0, 1024)
      ->type_name("INT");
}

}  // namespace hebb
