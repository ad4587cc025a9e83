// The examples of docs/data.md, docs/formats/shards.md, docs/formats/records.md and docs/verbs/data.md.
#include "data/rows/data_config.h"
#include "data/shards/dataset.h"
#include "data/tasks/records.h"
#include "tests/page_blocks.h"
#include "tests/temp_folder.h"

TEST_CASE("the documented data section is valid", "[fast]") {
  const auto config = Fields::read<DataConfig>(parse_json(page_blocks("data.md")[0], "run.json"), "data");
  CHECK(config.sources.size() == 3);
  CHECK(resolve_packing(config.sources[1].packing, config.packing, false).packing == Packing::document);
  CHECK(resolve_task(config.sources[2].synthetic, "data.sources.2", 0, 64, 4).pairs == 8);
}

FOLDER_TEST("the documented dataset.json is valid", "[fast]") {
  const Dataset dataset = read_dataset(folder.write("dataset.json", page_blocks("formats/shards.md")[0]));
  CHECK(dataset.vocab_size == 259);
  CHECK(dataset.total_tokens == 1000);
  CHECK(dataset.shards[0].crc32 == 3993115916U);
  CHECK(read_dataset(folder.write("dataset.json", page_blocks("formats/dataset.md")[0])).shards.size() == 2);
}

FOLDER_TEST("the documented records are read", "[fast]") {
  const auto file = [&](const std::string& kind) {
    return folder.write(kind + ".jsonl", page_blocks("formats/records.md", "\n`" + kind + "`\n\n```json\n")[0])
        .string();
  };
  CHECK(read_records<ChoiceRecord>(file("choice")).size() == 2);
  CHECK(read_records<PartialRecord>(file("partial")).size() == 1);
  CHECK(read_records<ClozeRecord>(file("cloze")).size() == 1);
  CHECK(read_records<RollingRecord>(file("rolling")).size() == 1);
  CHECK(read_records<GenerateRecord>(file("generate")).size() == 2);
  CHECK(read_records<AnswerRecord>(file("answer")).size() == 1);
}
