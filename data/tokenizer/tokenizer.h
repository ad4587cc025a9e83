#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/fields.h"

namespace hebb {

class ByteLevelEncoder;

/// The "tokenizer" object of dataset.json and of a run configuration (docs/verbs/data.md).
struct TokenizerConfig {
  std::string type = "sentencepiece";  // or "huggingface", "bytes"
  std::string file;                    // .model or tokenizer.json file; empty for bytes
  bool add_bos = false, add_eos = true;
};
void fields(Fields& f, TokenizerConfig& config);

/// The tokenizer that a command line names: "bytes", or a file whose first byte tells its type.
TokenizerConfig tokenizer_named(const std::string& name);

/// Name of the copy of the file in run and data folders.
std::string tokenizer_copy_name(const TokenizerConfig& config);

/// Tokenizer::hash() of the tokenizer that a configuration names, without loading it.
uint64_t tokenizer_hash(const TokenizerConfig& config);

/// Text to token ids and back. Immutable and safe to share between threads.
/// Source: docs/verbs/data.md.
class Tokenizer {
 public:
  /// Ids of the special tokens and whether documents get them.
  struct Special {
    int32_t bos = -1, eos = -1, pad = -1;  // -1 = none
    bool add_bos = false, add_eos = true;
  };

  /// Errors: ConfigError for a type or file that does not fit, or an add_bos/add_eos whose id the
  /// model lacks; DataError for an unreadable or damaged model file.
  static std::shared_ptr<const Tokenizer> load(const TokenizerConfig& config);
  ~Tokenizer();

  const TokenizerConfig& config() const { return config_; }
  int32_t vocab_size() const { return static_cast<int32_t>(surfaces_.size()); }
  const Special& special() const { return special_; }
  /// fnv1a64 of the model file's bytes; of "bytes" for the byte tokenizer.
  uint64_t hash() const { return hash_; }
  /// The model file as it is, to be copied into run and data folders; empty for bytes.
  const std::string& model_bytes() const { return model_bytes_; }
  /// How text is encoded: "built-in BPE", "built-in byte-level BPE", "library (REASON)" or "bytes".
  std::string encoder_name() const;
  /// Whether some text cannot come back exactly because U+2581 is returned as a space.
  bool loses_visible_space() const { return config_.type == "sentencepiece"; }

  /// Encodes many texts on one thread; keeps a cache of words.
  class Encoder {
   public:
    explicit Encoder(std::shared_ptr<const Tokenizer> tokenizer);
    ~Encoder();
    /// Appends the ids of `text`, without BOS or EOS. Invalid UTF-8 is encoded as U+FFFD.
    void encode(std::string_view text, std::vector<int32_t>& ids);

   private:
    struct Scratch;
    std::shared_ptr<const Tokenizer> tokenizer_;
    std::unique_ptr<Scratch> scratch_;
  };
  std::vector<int32_t> encode(std::string_view text) const;

  /// Text of the ids; special ids give nothing; always valid UTF-8 (a byte that belongs to no
  /// character becomes U+FFFD). Throws DataError for an id outside the vocabulary.
  std::string decode(std::span<const int32_t> ids) const;
  /// How an id is named: the bytes that it stands for, of a special id its piece ("</s>"). Throws DataError for an id
  /// outside the vocabulary.
  std::string piece(int32_t id) const;
  /// The special id with this piece; -1 = none.
  int32_t id_of_special(std::string_view piece) const;
  /// The id of text outside the vocabulary; -1 = none.
  int32_t unknown() const;
  /// Bytes of text that an id stands for; 0 for special ids. Throws DataError for an id outside the vocabulary.
  int64_t text_bytes(int32_t id) const;
  /// Bytes of a document's text that each of its ids stands for: text_bytes() without the space that encoding puts in
  /// front of a text, and one for a space that the vocabulary lacks and spells in bytes.
  std::vector<int64_t> document_bytes(std::span<const int32_t> ids) const;

  /// Decodes token by token; the pieces joined equal decode() of all ids.
  class Decoder {
   public:
    explicit Decoder(std::shared_ptr<const Tokenizer> tokenizer) : Decoder(tokenizer.get()) { owner_ = tokenizer; }
    /// The text goes on behind other text: no space in front of it is dropped.
    void follow_text() { is_start_ = false; }
    /// Text that became certain with this id; bytes of an unfinished character are held back.
    std::string push(int32_t id);
    /// What was held back, as U+FFFD.
    std::string finish();

   private:
    friend class Tokenizer;
    explicit Decoder(const Tokenizer* tokenizer) : tokenizer_(tokenizer) {}
    void push(int32_t id, std::string& out);
    bool drops_space(std::string_view text) const;
    void flush_bytes(bool is_last, std::string& out);

    std::shared_ptr<const Tokenizer> owner_;
    const Tokenizer* tokenizer_;
    std::string bytes_;     // bytes of an unfinished character
    bool is_start_ = true;  // nothing but dropped spaces so far
    bool dropped_space_ = false;
    bool wrote_text_ = false;
  };

 private:
  struct Library;  // SentencePiece; keeps its headers out of here
  struct Surface {
    std::string text;  // bytes, not always of whole characters, for byte tokens
    enum Kind : uint8_t { kText, kByte, kUnknown, kSpecial } kind = kText;
  };

  explicit Tokenizer(TokenizerConfig config);
  const Surface& surface(int32_t id) const;
  void load_bytes();
  void load_sentencepiece();
  void load_tokenizer_json();
  void check_special() const;

  TokenizerConfig config_;
  Special special_;
  uint64_t hash_ = 0;
  std::string model_bytes_;
  std::vector<Surface> surfaces_;
  std::map<int32_t, std::string> names_;  // of special ids and the unknown one
  enum class StartSpaces { keep, drop_one, drop_all } start_spaces_ = StartSpaces::keep;
  std::unique_ptr<Library> library_;
  std::unique_ptr<const ByteLevelEncoder> byte_level_;
};

/// Errors: DataError where a model of `vocab_size` tokens lacks some of the tokenizer's ids. `where`: that size.
void require_ids(const Tokenizer& tokenizer, int64_t vocab_size, const std::string& where);

/// "none" for one below 0.
std::string id_text(int32_t id);

}  // namespace hebb
