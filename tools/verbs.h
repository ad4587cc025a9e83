#pragma once
// The verbs of the command line. Each verb file defines one function that adds its verb to the program: its options and
// the function that it runs, which calls into train/ or data/. Errors are thrown (core/error.h) and main prints them.
#include <string>

namespace hebb {

class Command;

void add_data_verb(Command program);
void add_tokenizer_verb(Command program);
void add_inspect_verb(Command program);
void add_convert_verb(Command program);
void add_eval_verb(Command program);
void add_generate_verb(Command program);
void add_plan_verb(Command program);
void add_bench_verb(Command program);
void add_ladder_verb(Command program);
void add_report_verb(Command program);
void add_doctor_verb(Command program);
void add_selftest_verb(Command program);
void add_trace_verb(Command program);
void add_serve_verb(Command program);
void add_train_verb(Command program);

/// What `hebb tokenizer info` prints about "bytes" a SentencePiece model or a tokenizer.json.
std::string describe_tokenizer(const std::string& name);

/// Text of `hebb --version`: version, build options, library versions.
std::string version_text();

}  // namespace hebb
