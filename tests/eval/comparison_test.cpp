// Results of several checkpoints side by side.
#include "eval/comparison.h"

#include "core/statistics.h"
#include "eval/evaluation.h"
#include "tests/temp_folder.h"
#include "tests/test.h"

namespace {

Json result(const std::string& tokenizer, double nll, double bits) {
  return Json::object(
      {{"name", "held"},
       {"kind", "stream_ppl"},
       {"tokenizer", tokenizer},
       {"metrics", Json::object({{"nll", Json::object({{"value", nll}})},
                                 {"bits_per_byte", Json::object({{"value", bits}, {"stderr", 0.5}})}})}});
}

}  // namespace

TEST_CASE("losses per token of different tokenizers have lines of their own", "[fast]") {
  CHECK(comparison_text({{"a:1", {result("0123456789", 2.5, 1)}}, {"b", {result("0123456789", 3, 1.25)}}}) ==
        "                        a:1           b\n"
        "held.nll                2.5           3\n"
        "held.bits_per_byte  1 ± 0.5  1.25 ± 0.5");
  CHECK(comparison_text({{"a:1", {result("0123456789", 2.5, 1)}}, {"b", {result("9876543210", 3, 1.25)}}}) ==
        "                                 a:1           b\n"
        "held.nll (tokenizer 012345)      2.5           -\n"
        "held.bits_per_byte           1 ± 0.5  1.25 ± 0.5\n"
        "held.nll (tokenizer 987654)        -           3");
}

TEST_CASE("a share of none or all has an interval, a mean over parts says of how many", "[fast]") {
  CHECK(metric_text(mean_metric(std::vector<double>(60, 0.0))) == "0 [0, 0.06]");
  CHECK(metric_text(mean_metric(std::vector<double>(24, 0.0))) == "0 [0, 0.14]");
  CHECK(mean_metric(std::vector<double>(24, 1.0)).at("high").as_double() == 1);
  CHECK(metric_text(mean_metric(std::vector<double>{1, 1})) == "1 [0.34, 1]");
  CHECK(metric_text(mean_metric(std::vector<double>{0, 1, 1, 0})) == "0.5 ± 0.29");
  CHECK(metric_text(mean_metric(std::vector<double>{0.25, 0.75})) == "0.5 ± 0.25");
  CHECK(mean_metric(std::vector<double>{0.25, 0.75}).find("low") == nullptr);
  const Json parts = parts_metric(
      {mean_metric(std::vector<double>{0, 1, 1, 0}), mean_metric(std::vector<double>{0.25, 0.75})}, "tasks");
  CHECK(parts.at("stderr").as_double() == Approx(std::sqrt(1.0 / 12 + 1.0 / 16) / 2));
  CHECK(metric_text(parts) == "0.5 ± 0.19 of 2 tasks");
  CHECK(metric_text(parts_metric({mean_metric(std::vector<double>(3, 0.0))}, "tasks")) == "0 of 1 task");
}

FOLDER_TEST("checkpoints are compared on the same examples", "[fast]") {
  // acc: 0/1; nll: sums over counts. Example 2 of b was left out.
  const std::vector<ItemValues> a = {{"acc", "", {}, {1, 0, 1, 0}, {}}, {"nll", "ppl", {}, {2, 9, 3, 4}, {1, 3, 2, 2}}},
                                b = {{"acc", "", {0, 1, 3}, {1, 1, 1}, {}},
                                     {"nll", "ppl", {}, {1, 6, 3, 5}, {1, 3, 2, 2}}};
  folder.write("a.items.jsonl", item_lines(a));
  folder.write("b.items.jsonl", item_lines(b));
  const auto differences =
      paired_differences(read_item_values(folder / "a.items.jsonl"), read_item_values(folder / "b.items.jsonl"));
  REQUIRE(differences.size() == 3);
  CHECK(differences[0].metric == "acc");
  CHECK(differences[0].n == 3);
  CHECK(differences[0].value == Approx(2.0 / 3));  // of 0, 1, 1
  CHECK(*differences[0].error == Approx(1.0 / 3));
  CHECK(*differences[0].p == Approx(student_tail(2, 2)));
  // nll: means 18/8 and 15/8; residuals of b minus those of a, over 8.
  const double mean_a = 18.0 / 8, mean_b = 15.0 / 8;
  const double counts[] = {1, 3, 2, 2};
  double squares = 0, squares_exp = 0;
  for (size_t i = 0; i < 4; ++i) {
    const double rest_a = (a[1].sums[i] - mean_a * counts[i]) / 8, rest_b = (b[1].sums[i] - mean_b * counts[i]) / 8;
    squares += (rest_b - rest_a) * (rest_b - rest_a);
    squares_exp += std::pow(std::exp(mean_b) * rest_b - std::exp(mean_a) * rest_a, 2);
  }
  CHECK(differences[1].metric == "nll");
  CHECK(differences[1].value == Approx(mean_b - mean_a));
  CHECK(*differences[1].error == Approx(std::sqrt(4.0 / 3 * squares)));
  CHECK(differences[2].metric == "ppl");
  CHECK(differences[2].value == Approx(std::exp(mean_b) - std::exp(mean_a)));
  CHECK(*differences[2].error == Approx(std::sqrt(4.0 / 3 * squares_exp)));

  const auto with = [](const char* items, const char* tokenizer, const char* inputs) {
    return Json::object(
        {{"name", "held"}, {"kind", "stream_ppl"}, {"tokenizer", tokenizer}, {"inputs", inputs}, {"items", items}});
  };
  const Json of_a = with("a.items.jsonl", "t", "i"), of_b = with("b.items.jsonl", "t", "i");
  CHECK(result_differences(of_a, folder.path(), of_b, folder.path()).size() == 3);
  CHECK(result_differences(of_a, folder.path(), with("b.items.jsonl", "other", "i"), folder.path()).empty());
  CHECK(result_differences(of_a, folder.path(), with("b.items.jsonl", "t", "others"), folder.path()).empty());
  CHECK(result_differences(of_a, folder.path(), with("gone.items.jsonl", "t", "i"), folder.path()).empty());
  const std::string text = differences_text({{"a", {of_a}, folder.path()}, {"b", {of_b}, folder.path()}});
  CHECK_THAT(text, Contains("minus a ") && Contains("held.acc") && Contains("+0.6667 ± 0.33") && Contains("  0.55"));
  CHECK(differences_text({{"a", {of_a}, folder.path()}}).empty());
  folder.write("b.items.jsonl", item_lines({{"acc", "", {}, {1, INFINITY}, {}}}));
  CHECK(paired_differences(a, read_item_values(folder / "b.items.jsonl")).empty());  // no finite difference
  folder.write("b.items.jsonl", "{\"mean\": \"acc\", \"sums\": [1, 2], \"counts\": [1]}\n");
  CHECK_THROWS_AS(read_item_values(folder / "b.items.jsonl"), DataError);
}

TEST_CASE("a checkpoint is called by its run and step", "[fast]") {
  CHECK(checkpoint_label("/x/runs/q/checkpoints/step_00000200/model.safetensors") == "q:200");
  CHECK(checkpoint_label("/x/runs/q/checkpoints/step_00000000/model.safetensors") == "q:0");
  CHECK(checkpoint_label("/x/weights/model.safetensors") == "weights");
}
