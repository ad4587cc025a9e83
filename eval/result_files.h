#pragma once
#include <functional>
#include <optional>
#include <string>

#include "core/files.h"
#include "core/json.h"

namespace hebb {

/// The result files of one evaluation in a folder (docs/verbs/eval.md, Results). NAME.json is the last good result, and
/// the last of any status where none is good. NAME.FINGERPRINT.json is one that has no place there: an older good
/// result of another fingerprint, or one that is not good beside a good one.
class ResultFiles {
 public:
  ResultFiles(fs::path folder, std::string name) : folder_(std::move(folder)), name_(std::move(name)) {}

  fs::path current() const { return folder_ / (name_ + ".json"); }
  /// The good result of this fingerprint, wherever it lies. A damaged NAME.json is named to `note`.
  std::optional<Json> finished(const std::string& fingerprint,
                               const std::function<void(const std::string&)>& note) const;
  /// Whether NAME.json has this fingerprint.
  bool is_current(const std::string& fingerprint) const;
  /// Makes the good result of this fingerprint NAME.json again.
  void restore(const std::string& fingerprint) const;
  /// Writes a result and the files beside it ("": none), and names to `note` what has another place than before.
  /// Returns the result as it is written.
  Json write(Json result, const std::string& samples, const std::string& items,
             const std::function<void(const std::string&)>& note) const;
  /// Removes what a killed process had begun to write.
  void remove_unfinished() const;

 private:
  std::string stem(const std::string& fingerprint) const { return name_ + "." + fingerprint; }
  fs::path aside(const std::string& fingerprint) const { return folder_ / (stem(fingerprint) + ".json"); }
  std::optional<Json> good(const fs::path& file) const;
  std::string move(const Json& result, const std::string& to) const;

  fs::path folder_;
  std::string name_;
};

/// Whether a file name without its extension ends in a fingerprint: NAME.FINGERPRINT.
bool has_fingerprint(const std::string& stem);

}  // namespace hebb
