#include "data/tokenizer/tokenizer_export.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/utf8.h"
#include "data/text/characters.h"
#include "data/tokenizer/bpe_encoder.h"
#include "data/tokenizer/byte_characters.h"

namespace hebb {
namespace {

using Piece = SentencePieceModel::Piece;
using PieceType = SentencePieceModel::PieceType;
constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

Json typed(const char* type, std::vector<Json::Member> members = {}) {
  members.insert(members.begin(), {"type", type});
  return Json::object(std::move(members));
}
Json sequence_of(const char* key, std::vector<Json> items) {
  return items.size() == 1 ? items.front() : typed("Sequence", {{key, Json::array(std::move(items))}});
}
Json replace(const char* kind, std::string_view from, std::string_view to) {
  return typed("Replace", {{"pattern", Json::object({{kind, std::string(from)}})}, {"content", std::string(to)}});
}
Json special_token(int32_t id, const std::string& content) {
  return Json::object({{"id", id},
                       {"content", content},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", true}});
}

/// "BOS $A", and for two texts "BOS $A BOS $B".
Json bos_template(const std::string& bos, int32_t id) {
  const auto token = [&](int type) {
    return Json::object({{"SpecialToken", Json::object({{"id", bos}, {"type_id", type}})}});
  };
  const auto text = [](const char* name, int type) {
    return Json::object({{"Sequence", Json::object({{"id", name}, {"type_id", type}})}});
  };
  const Json known = Json::object({{"id", bos}, {"ids", Json::array({id})}, {"tokens", Json::array({bos})}});
  return typed("TemplateProcessing", {{"single", Json::array({token(0), text("A", 0)})},
                                      {"pair", Json::array({token(0), text("A", 0), token(1), text("B", 1)})},
                                      {"special_tokens", Json::object({{bos, known}})}});
}
Json post_processor(const Tokenizer& tokenizer) {
  const Tokenizer::Special& special = tokenizer.special();
  return special.add_bos ? bos_template(tokenizer.piece(special.bos), special.bos) : Json();
}

Json file_of(std::vector<Json> added, Json normalizer, Json pre_tokenizer, Json post_processor, Json decoder,
             Json model) {
  return Json::object({{"version", "1.0"},
                       {"truncation", Json()},
                       {"padding", Json()},
                       {"added_tokens", Json::array(std::move(added))},
                       {"normalizer", std::move(normalizer)},
                       {"pre_tokenizer", std::move(pre_tokenizer)},
                       {"post_processor", std::move(post_processor)},
                       {"decoder", std::move(decoder)},
                       {"model", std::move(model)}});
}

Json json_of_bytes(const Tokenizer& tokenizer) {
  std::vector<Json::Member> vocab;
  std::vector<Json> added;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (id < 256) {
      vocab.emplace_back(byte_character(static_cast<unsigned char>(id)), id);
    } else {
      added.push_back(special_token(id, tokenizer.piece(id)));
    }
  }
  const Json level = typed("ByteLevel", {{"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}});
  return file_of(std::move(added), Json(), level, post_processor(tokenizer), level,
                 typed("BPE", {{"dropout", Json()},
                               {"unk_token", Json()},
                               {"continuing_subword_prefix", Json()},
                               {"end_of_word_suffix", Json()},
                               {"fuse_unk", false},
                               {"byte_fallback", false},
                               {"ignore_merges", false},
                               {"vocab", Json::object(std::move(vocab))},
                               {"merges", Json::array()}}));
}

// ---- SentencePiece --------------------------------------------------------------------------------------------------

bool has(const SentencePieceModel& model, PieceType type) {
  return std::any_of(model.pieces.begin(), model.pieces.end(), [&](const Piece& p) { return p.type == type; });
}

std::set<char32_t> characters_in(std::string_view text) {
  std::set<char32_t> found;
  for (size_t at = 0; at < text.size();) { found.insert(utf8_decode(text, at)); }
  return found;
}

/// Characters that are pieces.
std::set<char32_t> single_characters(const SentencePieceModel& model) {
  std::set<char32_t> found;
  for (const Piece& piece : model.pieces) {
    size_t at = 0;
    if (piece.type != PieceType::normal || piece.text.empty()) { continue; }
    if (const char32_t c = utf8_decode(piece.text, at); at == piece.text.size()) { found.insert(c); }
  }
  return found;
}

std::string shown(const std::string& text) { return Json(text).dump(); }

/// The first character of a text that is no piece, quoted, or "".
std::string missing_character(std::string_view text, const std::set<char32_t>& known) {
  for (const char32_t c : characters_in(text)) {
    if (known.count(c) == 0) {
      std::string missing;
      utf8_append(missing, c);
      return shown(missing);
    }
  }
  return "";
}

/// One way to make a piece from two others; ids.
struct Way {
  int32_t left, right, whole;
};

/// Every way to make every piece, the piece of the highest score first: the library tokenizers takes the first.
std::vector<Way> ways_of(const SentencePieceModel& model) {
  std::unordered_map<std::string_view, int32_t> ids;
  std::vector<int32_t> order;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    if (model.pieces[id].type != PieceType::normal) { continue; }
    ids.emplace(model.pieces[id].text, static_cast<int32_t>(id));
    order.push_back(static_cast<int32_t>(id));
  }
  const auto piece = [&](int32_t id) -> const Piece& { return model.pieces[static_cast<size_t>(id)]; };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return piece(a).score > piece(b).score; });
  std::vector<Way> ways;
  for (const int32_t whole : order) {
    const std::string_view text = piece(whole).text;
    const size_t first = ways.size();
    for (size_t cut = 1; cut < text.size(); ++cut) {
      const auto left = ids.find(text.substr(0, cut)), right = ids.find(text.substr(cut));
      if (left != ids.end() && right != ids.end()) { ways.push_back({left->second, right->second, whole}); }
    }
    std::sort(ways.begin() + static_cast<std::ptrdiff_t>(first), ways.end(),
              [](const Way& a, const Way& b) { return std::pair(a.left, a.right) < std::pair(b.left, b.right); });
  }
  return ways;
}

/// Whether runs of the piece `one` give the same pieces by scores, the leftmost first among equals, and by the order of
/// the ways.
bool runs_agree(const SentencePieceModel& model, const std::vector<Way>& ways, int32_t one, int64_t longest) {
  BpeMerges by_score, by_order;
  float place = 0;
  for (const Way& way : ways) {
    const uint64_t key = pair_key(static_cast<uint32_t>(way.left), static_cast<uint32_t>(way.right));
    by_score.insert(key, {way.whole, model.pieces[static_cast<size_t>(way.whole)].score});
    by_order.insert(key, {way.whole, place--});
  }
  BpeScratch scratch;
  const auto cut = [&](int64_t length, const BpeMerges& merges) {
    scratch.start("");
    for (uint32_t i = 0; i < length; ++i) { scratch.append(one, i, i + 1); }
    scratch.merge(merges);
    std::vector<int32_t> ids;
    scratch.each([&](const BpeScratch::Node& node) { ids.push_back(node.symbol); });
    return ids;
  };
  for (int64_t length = 2; length <= 4 * longest; ++length) {
    if (cut(length, by_score) != cut(length, by_order)) { return false; }
  }
  return true;
}

// Among pieces of one score the leftmost merge comes first here, and the first of the file there. That is the same for
// the runs of one character with which models keep white space: they are cut when all else is merged.
std::string equal_scores_obstacle(const SentencePieceModel& model) {
  std::map<float, std::vector<const Piece*>> by_score;
  for (const Piece& piece : model.pieces) {
    if (piece.type == PieceType::normal && count_characters(piece.text) > 1) {
      by_score[piece.score].push_back(&piece);
    }
  }
  for (const auto& [score, equals] : by_score) {
    if (equals.size() == 1) { continue; }
    const std::string reason =
        fmt::format("the pieces {} and {} have the same score", shown(equals[0]->text), shown(equals[1]->text));
    size_t end = 0;
    utf8_decode(equals[0]->text, end);
    const std::string one = equals[0]->text.substr(0, end);
    int32_t one_id = -1;
    for (size_t id = 0; id < model.pieces.size(); ++id) {
      if (model.pieces[id].text == one) { one_id = static_cast<int32_t>(id); }
    }
    int64_t longest = 0;
    for (const Piece* piece : equals) {
      if (characters_in(piece->text) != characters_in(one)) { return reason; }
      longest = std::max(longest, count_characters(piece->text));
    }
    for (const auto& [other_score, others] : by_score) {
      for (const Piece* other : others) {
        const bool is_early = other_score > score && other->text.find(one + one) == std::string::npos;
        if (other_score != score && other->text.find(one) != std::string::npos && !is_early) { return reason; }
      }
    }
    std::vector<Way> ways = ways_of(model);
    std::erase_if(ways, [&model, score = score](const Way& way) {
      return model.pieces[static_cast<size_t>(way.whole)].score != score;
    });
    if (!runs_agree(model, ways, one_id, longest)) { return reason; }
  }
  return "";
}

// A symbol outside the vocabulary is bytes there, which merge with nothing.
std::string bpe_obstacle(const SentencePieceModel& model, const std::set<char32_t>& known) {
  for (const Piece& piece : model.pieces) {
    if (piece.type != PieceType::normal || count_characters(piece.text) < 2) { continue; }
    if (const std::string c = missing_character(piece.text, known); !c.empty()) {
      return fmt::format("the piece {} holds the character {}, which is no piece", shown(piece.text), c);
    }
  }
  return equal_scores_obstacle(model);
}

// Byte pieces are pieces of the text there. A score below that of their characters keeps them out of it, which changes
// nothing else where all characters of pieces are pieces.
std::string unigram_obstacle(const SentencePieceModel& model, const std::set<char32_t>& known) {
  if (!model.byte_fallback) { return ""; }
  if (const std::string c = missing_character("<0x123456789ABCDEF>", known); !c.empty()) {
    return fmt::format("the character {} is no piece, so that a text may spell a byte piece", c);
  }
  for (const Piece& piece : model.pieces) {
    if (piece.type != PieceType::normal) { continue; }
    if (const std::string c = missing_character(piece.text, known); !c.empty()) {
      return fmt::format("the piece {} holds the character {}, which is no piece", shown(piece.text), c);
    }
  }
  return "";
}

std::string piece_obstacle_of(const Piece& piece) {
  if (utf8_first_invalid(piece.text) != std::string_view::npos) { return "a piece is not UTF-8"; }
  if (piece.text.empty()) { return "an empty piece"; }
  if (piece.text.find(' ') != std::string::npos) { return "the piece " + shown(piece.text) + " holds a raw space"; }
  if (!std::isfinite(piece.score)) { return "the piece " + shown(piece.text) + " has no finite score"; }
  const bool is_special = piece.type == PieceType::control || piece.type == PieceType::unknown;
  if (is_special && count_characters(piece.text) == 1) {
    return "the special piece " + shown(piece.text) + " is one character";
  }
  return "";
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool is_plain = static_cast<unsigned char>(c) >= 0x80 || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') ||
                          (c >= 'a' && c <= 'z') || c == '\n';
    if (!is_plain) { out += '\\'; }
    out += c;
  }
  return out;
}

/// User-defined pieces cut the text wherever they stand, the longest first.
Json user_defined_split(const SentencePieceModel& model) {
  std::vector<std::string> texts;
  for (const Piece& piece : model.pieces) {
    if (piece.type == PieceType::user_defined) { texts.push_back(piece.text); }
  }
  std::sort(texts.begin(), texts.end(), [](const std::string& a, const std::string& b) { return a.size() > b.size(); });
  std::string pattern;
  for (const std::string& text : texts) { pattern += (pattern.empty() ? "" : "|") + escaped(text); }
  return typed("Split", {{"pattern", Json::object({{"Regex", pattern}})}, {"behavior", "Isolated"}, {"invert", false}});
}

Json vocab_of(const SentencePieceModel& model) {
  std::vector<Json::Member> vocab;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    vocab.emplace_back(model.pieces[id].text, static_cast<int64_t>(id));
  }
  return Json::object(std::move(vocab));
}

Json merges_of(const SentencePieceModel& model) {
  std::vector<Json> merges;
  for (const Way& way : ways_of(model)) {
    merges.emplace_back(model.pieces[static_cast<size_t>(way.left)].text + " " +
                        model.pieces[static_cast<size_t>(way.right)].text);
  }
  return Json::array(std::move(merges));
}

/// The score that selects a user-defined piece, as the library computes it: its highest score is at least FLT_MIN.
double user_defined_score(const SentencePieceModel& model, const Piece& piece) {
  float highest = std::numeric_limits<float>::min();
  for (const Piece& other : model.pieces) {
    if (other.type == PieceType::normal) { highest = std::max(highest, other.score); }
  }
  return static_cast<double>(static_cast<float>(piece.text.size()) * highest) - 0.1;
}

Json scored_vocab(const SentencePieceModel& model) {
  double lowest = 0;
  for (const Piece& piece : model.pieces) { lowest = std::min(lowest, static_cast<double>(piece.score)); }
  std::vector<Json> vocab;
  for (const Piece& piece : model.pieces) {
    const double score = piece.type == PieceType::byte           ? 6 * lowest - 1
                         : piece.type == PieceType::user_defined ? user_defined_score(model, piece)
                                                                 : piece.score;
    vocab.push_back(Json::array({piece.text, score}));
  }
  return Json::array(std::move(vocab));
}

Json normalizer_of(const SentencePieceModel& model) {
  std::vector<Json> steps;
  if (model.remove_extra_whitespaces) {
    steps.push_back(replace("Regex", "\\A +", ""));
    steps.push_back(replace("Regex", "[ \xE2\x96\x81]+\\z", ""));
    steps.push_back(replace("Regex", " {2,}", " "));
  }
  if (model.add_dummy_prefix) { steps.push_back(typed("Prepend", {{"prepend", std::string(kSpaceMark)}})); }
  steps.push_back(replace("String", " ", kSpaceMark));
  return sequence_of("normalizers", std::move(steps));
}

Json decoder_of(const SentencePieceModel& model) {
  std::vector<Json> steps{replace("String", kSpaceMark, " "), typed("ByteFallback"), typed("Fuse")};
  if (model.add_dummy_prefix || model.remove_extra_whitespaces) {
    const int start = model.remove_extra_whitespaces ? 1 << 20 : 1;  // all of them, or that of the prefix
    steps.push_back(typed("Strip", {{"content", " "}, {"start", start}, {"stop", 0}}));
  }
  return sequence_of("decoders", std::move(steps));
}

Json json_of_sentencepiece(const Tokenizer& tokenizer) {
  const SentencePieceModel model = parse_sentencepiece_model(tokenizer.model_bytes(), tokenizer.config().file);
  if (const std::string reason = tokenizer_json_obstacle(model); !reason.empty()) {
    throw DataError(tokenizer.config().file, "no tokenizer.json expresses this model exactly: " + reason);
  }
  std::vector<Json> added;
  int64_t unknown = 0;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const Piece& piece = model.pieces[id];
    if (piece.type == PieceType::unknown) { unknown = static_cast<int64_t>(id); }
    if (piece.type == PieceType::unknown || piece.type == PieceType::control) {
      added.push_back(special_token(static_cast<int32_t>(id), piece.text));
    }
  }
  const bool is_bpe = model.type == SentencePieceModel::Type::bpe;
  const bool cuts = is_bpe && has(model, PieceType::user_defined);
  Json json =
      is_bpe ? typed("BPE", {{"dropout", Json()},
                             {"unk_token", model.pieces[static_cast<size_t>(unknown)].text},
                             {"continuing_subword_prefix", Json()},
                             {"end_of_word_suffix", Json()},
                             {"fuse_unk", true},
                             {"byte_fallback", model.byte_fallback},
                             {"ignore_merges", cuts},
                             {"vocab", vocab_of(model)},
                             {"merges", merges_of(model)}})
             : typed("Unigram",
                     {{"unk_id", unknown}, {"vocab", scored_vocab(model)}, {"byte_fallback", model.byte_fallback}});
  return file_of(std::move(added), normalizer_of(model), cuts ? user_defined_split(model) : Json(),
                 post_processor(tokenizer), decoder_of(model), std::move(json));
}

/// Whether a post-processor or one of its parts puts special tokens around a text.
bool adds_tokens(const Json& processor) {
  if (processor.is_null()) { return false; }
  const std::string type = processor.text_at("type");
  if (type == "Sequence") {
    const std::vector<Json>& parts = processor.at("processors").items();
    return std::any_of(parts.begin(), parts.end(), adds_tokens);
  }
  if (type != "TemplateProcessing") { return type != "ByteLevel"; }
  const std::vector<Json>& parts = processor.at("single").items();
  return std::any_of(parts.begin(), parts.end(), [](const Json& part) { return part.find("SpecialToken") != nullptr; });
}

}  // namespace

bool adds_special_tokens(const Json& tokenizer_json) {
  const Json* processor = tokenizer_json.find("post_processor");
  return processor != nullptr && adds_tokens(*processor);
}

std::string tokenizer_json_obstacle(const SentencePieceModel& model) {
  using Type = SentencePieceModel::Type;
  if (model.type != Type::bpe && model.type != Type::unigram) { return "a model of words or characters"; }
  if (model.has_normalization_rules) { return "its normalisation rules"; }
  if (!model.escape_whitespaces) { return "spaces are not escaped"; }
  if (model.whitespace_as_suffix) { return "white space as suffix"; }
  if (has(model, PieceType::unused)) { return "unused pieces"; }
  const bool has_user_defined = has(model, PieceType::user_defined);
  if (has_user_defined && model.remove_extra_whitespaces) {
    return "user-defined pieces and the removal of extra white space";
  }
  std::set<std::string_view> texts;
  for (const Piece& piece : model.pieces) {
    if (std::string reason = piece_obstacle_of(piece); !reason.empty()) { return reason; }
    if (!texts.insert(piece.text).second) { return "the piece " + shown(piece.text) + " occurs twice"; }
  }
  const std::set<char32_t> known = single_characters(model);
  if (model.type == Type::unigram) { return unigram_obstacle(model, known); }
  if (std::string reason = bpe_obstacle(model, known); !reason.empty() || !has_user_defined) { return reason; }
  // Beside user-defined pieces, a stretch of text that is a piece is one token there.
  SentencePieceModel plain = model;
  plain.add_dummy_prefix = false;
  if (const std::string reason = BpeEncoder::obstacle(plain); !reason.empty()) { return reason; }
  const BpeEncoder encoder(plain);
  BpeEncoder::Scratch scratch;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const Piece& piece = model.pieces[id];
    std::vector<int32_t> ids;
    if (piece.type == PieceType::normal) { encoder.encode(piece.text, scratch, ids); }
    if (ids.size() > 1 && std::none_of(ids.begin(), ids.end(), [&](int32_t part) {
          return model.pieces[static_cast<size_t>(part)].type == PieceType::user_defined;
        })) {
      return fmt::format("user-defined pieces, and the piece {}, which its own text does not give", shown(piece.text));
    }
  }
  return "";
}

std::string tokenizer_json_of(const Tokenizer& tokenizer) {
  const std::string& type = tokenizer.config().type;
  if (type == "bytes") { return json_of_bytes(tokenizer).dump() + "\n"; }
  if (type == "sentencepiece") { return json_of_sentencepiece(tokenizer).dump() + "\n"; }
  Json json = parse_json(tokenizer.model_bytes(), tokenizer.config().file);
  if (adds_special_tokens(json) == tokenizer.special().add_bos) { return tokenizer.model_bytes(); }
  json.set("post_processor", post_processor(tokenizer));
  return json.dump() + "\n";
}

Json tokenizer_config_of(const Tokenizer& tokenizer, int64_t max_length) {
  const Tokenizer::Special& special = tokenizer.special();
  Json config = Json::object({{"tokenizer_class", "PreTrainedTokenizerFast"}});
  // Without add_bos no text of training began with BOS: libraries that want a token before a text take EOS, as hebb
  // does.
  for (const auto& [key, id] : {std::pair{"bos_token", special.add_bos || special.eos < 0 ? special.bos : -1},
                                {"eos_token", special.eos},
                                {"pad_token", special.pad},
                                {"unk_token", tokenizer.unknown()}}) {
    if (id >= 0) { config.set(key, tokenizer.piece(id)); }
  }
  config.set("add_bos_token", special.add_bos);
  config.set("add_eos_token", false);
  config.set("clean_up_tokenization_spaces", false);
  config.set("model_max_length", max_length);
  return config;
}

}  // namespace hebb
