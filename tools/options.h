#pragma once
// Options that several verbs share.
#include <string>
#include <string_view>
#include <vector>

#include "data/text_input.h"
#include "data/tokenizer.h"

namespace CLI {
class App;
class Option;
}

namespace hebb {

/// Lets an integer option also take "1e8" or "2.5e6", as long as the value is integral.
CLI::Option* accept_exponents(CLI::Option* option);
/// The same for integers >= 0, which the parser alone would take modulo 2^64.
CLI::Option* accept_unsigned(CLI::Option* option);

/// Checks of numbers, whose messages say what was found and expected; integers may be written as 1e3. Not a number never passes.
CLI::Option* at_least(CLI::Option* option, double lowest);
CLI::Option* above(CLI::Option* option, double bound);
CLI::Option* between(CLI::Option* option, double lowest, double highest);
/// A word out of `names`.
CLI::Option* one_of(CLI::Option* option, const std::vector<std::string>& names);

/// INPUT..., --format, --field, --split, --invalid-utf8, --skip-bad.
void add_text_input_options(CLI::App& app, TextInputOptions& input);

/// Errors: DataError naming the first byte of `text` that belongs to no character.
void require_utf8(const std::string& where, std::string_view text);

/// "bytes", or the path of a SentencePiece model.
TokenizerConfig tokenizer_config(const std::string& name);

/// --threads N of verbs that compute; 0 = the cores that the process may use.
CLI::Option* add_threads_option(CLI::App& app, int& threads);

}  // namespace hebb
