#include "data/tokenizer/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>

#include "core/error.h"
#include "core/utf8.h"

namespace hebb {
namespace {

struct MarkRange {
  char32_t first, last;
};

// Combining marks and one composed vowel that came after Unicode 9: utf8proc moves or composes them, the library
// does not. Made by tests/reference/tokenizer_json.py late-marks.
constexpr MarkRange kLateMarks[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},
    {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},
    {0xA82C, 0xA82C},   {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50},
    {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A},
    {0x11930, 0x11930}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34},
    {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97},
    {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE},
    {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}};

bool is_late_mark(char32_t c) {
  const auto* behind = std::upper_bound(std::begin(kLateMarks), std::end(kLateMarks), c,
                                        [](char32_t x, const MarkRange& range) { return x < range.first; });
  return behind != std::begin(kLateMarks) && c <= (behind - 1)->last;
}

void append_composed(std::string_view text, std::string& out) {
  utf8proc_uint8_t* composed = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &composed, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  if (size < 0) { throw DataError("", std::string("text cannot be normalised: ") + utf8proc_errmsg(size)); }
  out.append(reinterpret_cast<const char*>(composed), static_cast<size_t>(size));
  std::free(composed);
}

// Text between late marks, and those as they are.
void append_run(std::string_view text, std::string& out) {
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t start = at;
    if (is_late_mark(utf8_decode(text, at))) {
      append_composed(text.substr(begin, start - begin), out);
      out += text.substr(start, at - start);
      begin = at;
    }
  }
  append_composed(text.substr(begin), out);
}

}  // namespace

std::string_view compose_nfc(std::string_view text, std::string& scratch) {
  const auto is_ascii = [](char byte) { return static_cast<signed char>(byte) >= 0; };
  // Below U+0300, whose first byte this is, nothing composes with what is before it.
  const auto is_candidate = [](char byte) { return static_cast<unsigned char>(byte) >= 0xCC; };
  if (std::none_of(text.begin(), text.end(), is_candidate)) { return text; }
  scratch.clear();
  auto done = text.begin();
  while (true) {
    // A run with the ASCII character before it, to which a mark may belong; none belongs to one behind it.
    const auto* run = std::find_if_not(done, text.end(), is_ascii);
    if (run == text.end()) { break; }
    const auto* end = std::find_if(run, text.end(), is_ascii);
    const auto* begin = run > done ? run - 1 : run;
    scratch.append(done, begin);
    if (std::any_of(run, end, is_candidate)) {
      append_run({begin, end}, scratch);
    } else {
      scratch.append(begin, end);
    }
    done = end;
  }
  scratch.append(done, text.end());
  return scratch;
}

}  // namespace hebb
