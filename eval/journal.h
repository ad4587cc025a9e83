#pragma once
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/files.h"
#include "core/json.h"

namespace hebb {

/// What an evaluation has finished, item by item, in files beside its result, so that an interrupted one goes on there
/// (docs/verbs/eval.md, Interruptions). Every item has an index and is one line that is appended when it is finished.
class EvalJournal {
 public:
  using Weights = std::vector<std::vector<char>>;
  struct Item {
    Json value;                  // what the item gave
    std::string samples;         // lines that it logged
    bool moves_weights = false;  // fast weights are others after it
  };

  /// Of rank 0. Takes up what `file` and the files of other ranks beside it hold under the same `key`, however many
  /// ranks wrote them; the latter go into `file`. A file of another key, or a damaged one, is named to `note` and not
  /// used; a last line that a kill has cut is dropped. Without files of other ranks nothing is written before the first
  /// add(). The caller has the lock of the evaluation.
  EvalJournal(fs::path file, Json key, const std::function<void(const std::string& text)>& note);
  /// Of another rank, in a file of its own beside `file`, where rank 0 has kept these items.
  EvalJournal(const fs::path& file, Json key, int rank, const std::vector<int64_t>& kept);

  /// Removes the files of an evaluation, of all ranks.
  static void remove_files(const fs::path& file);

  /// Indices of the items that were kept.
  std::vector<int64_t> kept() const;
  /// Whether it was kept, by rank 0 where this is another one.
  bool is_kept(int64_t index) const { return items_.contains(index) || kept_by_first_.contains(index); }
  /// The item of this index that was kept; null where none was. Where items move fast weights the kept ones are the
  /// first ones.
  const Item* find(int64_t index) const;
  /// Index of the last item that was kept; -1: none.
  int64_t last() const { return items_.empty() ? -1 : items_.rbegin()->first; }
  /// Fast weights behind the last kept item, where one of them moved them.
  const std::optional<Weights>& weights() const { return weights_; }

  /// Appends an item that was not kept. Errors: CheckpointError (disk full).
  void add(int64_t index, const Item& item);
  /// Keeps the fast weights behind all items so far, so that they can be gone on from.
  void keep_weights(const Weights& weights);
  /// Items so far, kept and added.
  int64_t size() const { return static_cast<int64_t>(items_.size()) + added_; }
  /// Removes the files: the evaluation is complete.
  void remove();

 private:
  static fs::path weights_file(const fs::path& file) { return file.string() + "-weights"; }
  static std::vector<fs::path> files_of_ranks(const fs::path& file);
  void read(const std::function<void(const std::string& text)>& note);
  bool read_items(const fs::path& file, const std::function<void(const std::string& text)>& note);
  void read_weights();
  void write_items() const;

  fs::path file_;
  Json key_;
  std::map<int64_t, Item> items_;  // that were kept, by index
  std::set<int64_t> kept_by_first_;
  std::optional<Weights> weights_;
  bool is_whole_ = false;  // the file holds the kept items and nothing else
  int64_t added_ = 0;
  Descriptor open_;  // the file, once something is written
};

/// A number of an item as it was: JSON has none for NaN and infinities, which are kept as text.
double kept_number(const Json& value);

}  // namespace hebb
