#pragma once
// The verbs of the command line. Each verb file defines one function that adds its subcommand to the
// application and a callback to it. The callback runs after parsing, calls into train/ or data/, and
// may leave another exit code than 0 in `exit_code`; errors are thrown (core/error.h) and main prints
// them. Options show type and default in --help by themselves; the description ends with the unit
// where there is one ("Shard size [tokens]").
#include <string>

namespace CLI {
class App;
}

namespace hebb {

void add_data_verb(CLI::App& app, int& exit_code);
void add_tokenizer_verb(CLI::App& app, int& exit_code);
void add_inspect_verb(CLI::App& app, int& exit_code);
void add_eval_verb(CLI::App& app, int& exit_code);
void add_generate_verb(CLI::App& app, int& exit_code);
void add_plan_verb(CLI::App& app, int& exit_code);
void add_bench_verb(CLI::App& app, int& exit_code);
void add_ladder_verb(CLI::App& app, int& exit_code);
void add_report_verb(CLI::App& app, int& exit_code);
void add_doctor_verb(CLI::App& app, int& exit_code);
void add_selftest_verb(CLI::App& app, int& exit_code);
void add_trace_verb(CLI::App& app, int& exit_code);
void add_train_verb(CLI::App& app, int& exit_code);

/// What `hebb tokenizer info` prints about "bytes" or a SentencePiece model.
std::string describe_tokenizer(const std::string& name);

/// Text of `hebb --version`: version, build options, library versions.
std::string version_text();

}  // namespace hebb
