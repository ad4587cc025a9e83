#include "data/tokenizer/tokenizer.h"

#include <fmt/core.h>

#include <algorithm>
#include <fstream>
#include <optional>

#include "core/files.h"
#include "core/hash.h"
#include "core/utf8.h"
#include "data/text/characters.h"
#include "data/tokenizer/bpe_encoder.h"
#include "data/tokenizer/byte_level_encoder.h"
#include "data/tokenizer/sentencepiece_model.h"

#if HEBB_HAVE_SENTENCEPIECE
#include <sentencepiece_processor.h>
#endif

namespace hebb {
namespace {

constexpr int32_t kBytesBos = 256, kBytesEos = 257, kBytesPad = 258, kBytesVocab = 259;
constexpr std::string_view kVisibleSpace = "\xE2\x96\x81";

// The file does not say which special tokens these are: the names that models give them, the first that is there.
constexpr std::string_view kBosNames[] = {"<|begin_of_text|>", "<|startoftext|>", "<s>", "<bos>", "<|endoftext|>"};
constexpr std::string_view kEosNames[] = {"<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>"};
constexpr std::string_view kPadNames[] = {"<|finetune_right_pad_id|>", "<|pad|>", "<pad>"};

int32_t special_id(const TokenizerJson& json, std::span<const std::string_view> names) {
  for (const std::string_view name : names) {
    const auto token = std::find_if(json.added.begin(), json.added.end(),
                                    [&](const auto& t) { return t.is_special && t.content == name; });
    if (token != json.added.end()) { return token->id; }
  }
  return -1;
}

/// Errors: DataError, for a pipe too: models are read more than once.
std::string read_model(const fs::path& file) {
  if (is_special_file(file)) { throw DataError(file.string(), "a tokenizer", "a pipe or a device", "a file"); }
  return read_file(file);
}

}  // namespace

void fields(Fields& f, TokenizerConfig& config) {
  f.field("type", config.type).required().one_of({"sentencepiece", "huggingface", "bytes"}).help("Kind of tokenizer.");
  f.file("file", config.file)
      .help("SentencePiece .model file (BPE or unigram), or tokenizer.json (byte-level BPE); none for bytes.");
  f.field("add_bos", config.add_bos).help("Puts BOS in front of every document.");
  f.field("add_eos", config.add_eos).help("Puts EOS after every document.");
}

TokenizerConfig tokenizer_named(const std::string& name) {
  if (name == "bytes") { return {.type = "bytes", .file = ""}; }
  std::error_code error;
  const bool is_json =
      fs::path(name).extension() == ".json" || (fs::is_regular_file(name, error) && std::ifstream(name).peek() == '{');
  return {.type = is_json ? "huggingface" : "sentencepiece", .file = name};
}

std::string tokenizer_copy_name(const TokenizerConfig& config) {
  return config.type == "huggingface" ? "tokenizer.json" : "tokenizer.model";
}

uint64_t tokenizer_hash(const TokenizerConfig& config) {
  return fnv1a64(config.type == "bytes" ? "bytes" : read_model(config.file));
}

#if HEBB_HAVE_SENTENCEPIECE

struct Tokenizer::Library {
  sentencepiece::SentencePieceProcessor processor;
  std::optional<BpeEncoder> bpe;  // where it gives the library's ids, it replaces the library
  std::string obstacle;

  void encode(std::string_view text, std::vector<int32_t>& ids) const {
    // Positions inside the library are int; a space takes three bytes there.
    if (text.size() > static_cast<size_t>(INT32_MAX) / 3) {
      throw DataError("", "document too long for the SentencePiece library", fmt::format("{:d} bytes", text.size()),
                      fmt::format("at most {:d}", INT32_MAX / 3));
    }
    std::vector<int> found;
    const auto status = processor.Encode(absl::string_view(text.data(), text.size()), &found);
    if (!status.ok()) { throw DataError("", "SentencePiece cannot encode: " + status.ToString()); }
    ids.insert(ids.end(), found.begin(), found.end());
  }
};

void Tokenizer::load_sentencepiece() {
  if (config_.file.empty()) { throw ConfigError("tokenizer.file", "nothing", "a SentencePiece .model file"); }
  model_bytes_ = read_model(config_.file);
  hash_ = fnv1a64(model_bytes_);
  const SentencePieceModel model = parse_sentencepiece_model(model_bytes_, config_.file);
  library_ = std::make_unique<Library>();
  const auto status =
      library_->processor.LoadFromSerializedProto(absl::string_view(model_bytes_.data(), model_bytes_.size()));
  if (!status.ok()) { throw DataError(config_.file, "SentencePiece cannot read the model: " + status.ToString()); }
  if (model.has_denormalization_rules) {
    throw DataError(config_.file, "unsupported model", "denormalisation rules", "none");
  }
  for (const auto& piece : model.pieces) {
    using Type = SentencePieceModel::PieceType;
    if (piece.type == Type::control || piece.type == Type::unknown) { names_[vocab_size()] = piece.text; }
    switch (piece.type) {
      case Type::control: surfaces_.push_back({"", Surface::kSpecial}); break;
      case Type::unknown: surfaces_.push_back({model.unknown_surface, Surface::kUnknown}); break;
      case Type::byte:
        surfaces_.push_back({std::string(1, static_cast<char>(byte_piece_value(piece.text))), Surface::kByte});
        break;
      default: surfaces_.push_back({replace_all(piece.text, kVisibleSpace, " "), Surface::kText}); break;
    }
  }
  start_spaces_ = model.remove_extra_whitespaces ? StartSpaces::drop_all
                  : model.add_dummy_prefix       ? StartSpaces::drop_one
                                                 : StartSpaces::keep;
  special_.bos = library_->processor.bos_id();
  special_.eos = library_->processor.eos_id();
  special_.pad = library_->processor.pad_id();
  library_->obstacle = BpeEncoder::obstacle(model);
  if (library_->obstacle.empty()) { library_->bpe.emplace(model); }
}

#else

struct Tokenizer::Library {
  std::optional<BpeEncoder> bpe;
  std::string obstacle;
  void encode(std::string_view, std::vector<int32_t>&) const {}
};

void Tokenizer::load_sentencepiece() {
  throw ConfigError("tokenizer.type", "\"sentencepiece\", which this build lacks",
                    "\"bytes\", or a build with the package libsentencepiece-dev");
}

#endif

Tokenizer::Tokenizer(TokenizerConfig config) : config_(std::move(config)) {}
Tokenizer::~Tokenizer() = default;

std::shared_ptr<const Tokenizer> Tokenizer::load(const TokenizerConfig& config) {
  std::shared_ptr<Tokenizer> tokenizer(new Tokenizer(config));
  if (config.type == "bytes") {
    tokenizer->load_bytes();
  } else if (config.type == "sentencepiece") {
    tokenizer->load_sentencepiece();
  } else if (config.type == "huggingface") {
    tokenizer->load_tokenizer_json();
  } else {
    throw ConfigError("tokenizer.type", "\"" + config.type + "\"", "\"sentencepiece\", \"huggingface\" or \"bytes\"");
  }
  tokenizer->special_.add_bos = config.add_bos;
  tokenizer->special_.add_eos = config.add_eos;
  tokenizer->check_special();
  return tokenizer;
}

void Tokenizer::load_bytes() {
  if (!config_.file.empty()) {
    throw ConfigError("tokenizer.file", "the type \"bytes\" reads no file; leave out \"" + config_.file + "\"");
  }
  hash_ = tokenizer_hash(config_);
  for (int32_t id = 0; id < kBytesVocab; ++id) {
    const bool is_byte = id < kBytesBos;
    surfaces_.push_back(
        {is_byte ? std::string(1, static_cast<char>(id)) : "", is_byte ? Surface::kByte : Surface::kSpecial});
  }
  names_ = {{kBytesBos, "<s>"}, {kBytesEos, "</s>"}, {kBytesPad, "<pad>"}};
  special_.bos = kBytesBos;
  special_.eos = kBytesEos;
  special_.pad = kBytesPad;
}

void Tokenizer::load_tokenizer_json() {
  if (config_.file.empty()) { throw ConfigError("tokenizer.file", "nothing", "a tokenizer.json file"); }
  model_bytes_ = read_model(config_.file);
  hash_ = fnv1a64(model_bytes_);
  const TokenizerJson json = parse_tokenizer_json(model_bytes_, config_.file);
  surfaces_.assign(static_cast<size_t>(json.vocab_size), {"", Surface::kSpecial});
  for (const TokenizerJson::Token& token : json.vocab) {
    surfaces_[static_cast<size_t>(token.id)] = {token.bytes, Surface::kByte};
  }
  for (const TokenizerJson::AddedToken& token : json.added) {
    if (token.is_special) { names_[token.id] = token.content; }
    surfaces_[static_cast<size_t>(token.id)] =
        token.is_special ? Surface{"", Surface::kSpecial} : Surface{token.content, Surface::kByte};
  }
  special_.bos = special_id(json, kBosNames);
  special_.eos = special_id(json, kEosNames);
  special_.pad = special_id(json, kPadNames);
  byte_level_ = std::make_unique<const ByteLevelEncoder>(json);
}

void Tokenizer::check_special() const {
  if (config_.add_bos && special_.bos < 0) {
    throw ConfigError("tokenizer.add_bos", "true", "false, as " + config_.file + " has no BOS");
  }
  if (config_.add_eos && special_.eos < 0) {
    throw ConfigError("tokenizer.add_eos", "true", "false, as " + config_.file + " has no EOS");
  }
}

std::string Tokenizer::encoder_name() const {
  if (byte_level_) { return "built-in byte-level BPE"; }
  if (!library_) { return "bytes"; }
  return library_->bpe ? "built-in BPE" : "library (" + library_->obstacle + ")";
}

struct Tokenizer::Encoder::Scratch {
  BpeScratch bpe;
  std::string repaired;
};

Tokenizer::Encoder::Encoder(std::shared_ptr<const Tokenizer> tokenizer)
    : tokenizer_(std::move(tokenizer)), scratch_(std::make_unique<Scratch>()) {}
Tokenizer::Encoder::~Encoder() = default;

void Tokenizer::Encoder::encode(std::string_view text, std::vector<int32_t>& ids) {
  if (utf8_first_invalid(text) != std::string_view::npos) {
    uint64_t ignored = 0;
    scratch_->repaired = utf8_replace_invalid(text, ignored);
    text = scratch_->repaired;
  }
  if (tokenizer_->byte_level_) {
    tokenizer_->byte_level_->encode(text, scratch_->bpe, ids);
  } else if (!tokenizer_->library_) {
    for (const char byte : text) { ids.push_back(static_cast<unsigned char>(byte)); }
  } else if (tokenizer_->library_->bpe) {
    tokenizer_->library_->bpe->encode(text, scratch_->bpe, ids);
  } else {
    tokenizer_->library_->encode(text, ids);
  }
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  Encoder(std::shared_ptr<const Tokenizer>(std::shared_ptr<void>(), this)).encode(text, ids);
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  Decoder decoder(this);
  for (const int32_t id : ids) { decoder.push(id, text); }
  return text + decoder.finish();
}

const Tokenizer::Surface& Tokenizer::surface(int32_t id) const {
  if (id < 0 || id >= vocab_size()) {
    throw DataError("", "token id outside the vocabulary", std::to_string(id),
                    fmt::format("0 <= id < {:d}", vocab_size()));
  }
  return surfaces_[static_cast<size_t>(id)];
}

std::string Tokenizer::piece(int32_t id) const {
  const auto name = names_.find(id);
  return name != names_.end() ? name->second : surface(id).text;
}

int32_t Tokenizer::id_of_special(std::string_view piece) const {
  const auto name = std::find_if(names_.begin(), names_.end(), [&](const auto& n) {
    return n.second == piece && surface(n.first).kind == Surface::kSpecial;
  });
  return name == names_.end() ? -1 : name->first;
}

int32_t Tokenizer::unknown() const {
  const auto at = std::find_if(surfaces_.begin(), surfaces_.end(),
                               [](const Surface& surface) { return surface.kind == Surface::kUnknown; });
  return at == surfaces_.end() ? -1 : static_cast<int32_t>(at - surfaces_.begin());
}

std::vector<int64_t> Tokenizer::document_bytes(std::span<const int32_t> ids) const {
  std::vector<int64_t> bytes(ids.size());
  Decoder decoder(this);
  // SentencePiece writes spaces as U+2581. Without a piece for it that character is three byte pieces.
  const auto is_spelt_space = [&](size_t i) {
    for (size_t k = 0; k < kVisibleSpace.size(); ++k) {
      if (i + k >= ids.size() || surface(ids[i + k]).kind != Surface::kByte ||
          surface(ids[i + k]).text[0] != kVisibleSpace[k]) {
        return false;
      }
    }
    return library_ != nullptr;
  };
  for (size_t i = 0; i < ids.size(); ++i) {
    const Surface& own = surface(ids[i]);
    const bool is_spelt = is_spelt_space(i), is_space = is_spelt || own.kind == Surface::kText;
    const bool is_dropped = is_space && decoder.drops_space(is_spelt ? " " : own.text);
    bytes[i] = (is_spelt ? 1 : static_cast<int64_t>(own.text.size())) - (is_dropped ? 1 : 0);
    decoder.push(ids[i]);
    if (is_spelt) {
      decoder.dropped_space_ |= is_dropped;
      i += kVisibleSpace.size() - 1;
    }
  }
  return bytes;
}

int64_t Tokenizer::text_bytes(int32_t id) const { return static_cast<int64_t>(surface(id).text.size()); }

std::string Tokenizer::Decoder::push(int32_t id) {
  std::string text;
  push(id, text);
  return text;
}

// The rules of SentencePieceProcessor::Decode, one token at a time.
void Tokenizer::Decoder::push(int32_t id, std::string& out) {
  const Surface& surface = tokenizer_->surface(id);
  if (surface.kind == Surface::kByte) {
    bytes_ += surface.text;
    return flush_bytes(false, out);
  }
  if (tokenizer_->byte_level_) { return; }  // its library drops special tokens before it joins bytes
  flush_bytes(true, out);
  is_start_ = is_start_ && !dropped_space_ && !wrote_text_;
  std::string_view text = surface.text;
  if (surface.kind == Surface::kText && drops_space(text)) {
    text.remove_prefix(1);
    dropped_space_ = tokenizer_->start_spaces_ == StartSpaces::drop_one;
  }
  wrote_text_ = wrote_text_ || !text.empty();
  out += text;
}

/// Whether the space in front of a piece is one that encoding put there.
bool Tokenizer::Decoder::drops_space(std::string_view text) const {
  const bool is_start = is_start_ && !dropped_space_ && !wrote_text_ && bytes_.empty();
  return is_start && tokenizer_->start_spaces_ != StartSpaces::keep && text.starts_with(' ');
}

std::string Tokenizer::Decoder::finish() {
  std::string text;
  flush_bytes(true, text);
  return text;
}

void Tokenizer::Decoder::flush_bytes(bool is_last, std::string& out) {
  size_t at = 0;
  while (at < bytes_.size()) {
    const std::string_view rest = std::string_view(bytes_).substr(at);
    const Utf8Step step = utf8_step(rest);
    if (step.is_valid) {
      out += rest.substr(0, static_cast<size_t>(step.length));
      at += static_cast<size_t>(step.length);
    } else if (step.is_cut_off && !is_last) {
      break;
    } else {
      out += "\xEF\xBF\xBD";  // one for each byte, or for each cut character, as the libraries do
      at += tokenizer_->byte_level_ ? static_cast<size_t>(step.length) : 1;
    }
    wrote_text_ = true;
  }
  bytes_.erase(0, at);
}

std::string id_text(int32_t id) { return id < 0 ? "none" : std::to_string(id); }

void require_ids(const Tokenizer& tokenizer, int64_t vocab_size, const std::string& where) {
  if (tokenizer.vocab_size() > vocab_size) {
    const TokenizerConfig& config = tokenizer.config();
    throw DataError(where, fmt::format("found {:d}, expected at least {:d}, the ids of the tokenizer {}", vocab_size,
                                       tokenizer.vocab_size(), config.file.empty() ? config.type : config.file));
  }
}

}  // namespace hebb
