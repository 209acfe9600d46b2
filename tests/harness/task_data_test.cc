// Items of files: where a wrong one is, and which of them share a context.
#include "harness/task_data.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tasks/definitions.h"
#include "text/vocabularies.h"

namespace kvasir::test {
namespace {

class HarnessData : public testing::Test {
 protected:
  HarnessData() : folder_(testing::TempDir() + "kvasir-harness-data-" + std::to_string(::getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~HarnessData() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ + "/" + name) << text;
    return folder_ + "/" + name;
  }

  static Result<TaskData> find(const char* definition, const std::string& file) {
    const auto task = parse_task(definition);
    EXPECT_TRUE(task.ok()) << task.status().message();
    return find_items(*task, {.file = file}, nullptr);
  }

  static std::vector<std::size_t> clusters(const char* definition, const std::string& file) {
    const auto data = find(definition, file);
    EXPECT_TRUE(data.ok()) << data.status().message();
    std::vector<std::size_t> found;
    for (const TaskItem& item : data->items) found.push_back(item.cluster);
    return found;
  }

  std::string folder_;
};

constexpr const char* kTask =
    R"({"fields": ["q"], "prompt": "{{ q }}", "references": "a", "metrics": ["exact_match"], "target": "{{ a[0] }}",
        "shots_from": "examples.jsonl"})";

TEST_F(HarnessData, AWrongItemIsNamedByItsPlace) {
  const auto refusal = [&](const std::string& name, const std::string& text) {
    const auto data = find(kTask, write(name, text));
    EXPECT_EQ(data.status().code(), StatusCode::kInvalidArgument);
    return data.status().message();
  };
  const std::string right = R"({"q": "?", "a": "x"})";
  EXPECT_EQ(refusal("a.jsonl", right + "\n\n{\"a\": \"x\"}\n"),
            "'" + folder_ + "/a.jsonl', line 3: the field 'q' is missing");
  EXPECT_EQ(refusal("null.jsonl", right + "\n{\"q\": null, \"a\": \"x\"}\n"),
            "'" + folder_ +
                "/null.jsonl', line 2: the field 'q' is null, for which 'prompt' would write \"None\"; give a text");
  const std::string wrong_type = refusal("b.json", "[" + right + R"(, {"q": "?", "a": {"x": 1}}])");
  EXPECT_TRUE(wrong_type.starts_with("'" + folder_ + "/b.json', item 2: ")) << wrong_type;
  EXPECT_NE(wrong_type.find("'a'"), std::string::npos) << wrong_type;
  EXPECT_EQ(refusal("c.csv", "q,a\n?,x\n?,\n"), "'" + folder_ + "/c.csv', row 3: a right answer is empty");
}

TEST_F(HarnessData, AWrongExampleIsNamedByItsPlace) {
  auto task = parse_task(kTask);
  ASSERT_TRUE(task.ok());
  task->shots = 2;
  const std::string right = R"({"q": "?", "a": "x"})";
  write("examples.jsonl", right + "\n{}\n");
  const auto data = find_items(*task, {.file = write("a.jsonl", right)}, nullptr);
  EXPECT_EQ(data.status().message(), "'" + folder_ + "/examples.jsonl', line 2: the field 'q' is missing");
}

TEST_F(HarnessData, ItemsThatTheTaskLeavesOutAreCounted) {
  const auto task = parse_task(R"({"prompt": "{{ index }}: {{ q }}", "references": "a", "metrics": ["exact_match"],
      "leave_out": "{{ 'judged by people' if judge is defined else '' }}"})");
  ASSERT_TRUE(task.ok()) << task.status().message();
  const std::string left_out = R"({"q": 1, "judge": "human"})";
  const std::string text = left_out + "\n" + R"({"q": 2, "a": "x"})" + "\n" + left_out + "\n" +
                           R"({"q": 4, "a": "x"})" + "\n" + left_out + "\n";
  const auto all = find_items(*task, {.file = write("a.jsonl", text)}, nullptr);
  ASSERT_TRUE(all.ok()) << all.status().message();
  ASSERT_EQ(all->items.size(), 2U);
  EXPECT_EQ(all->left_out, 3U);
  EXPECT_EQ(all->items[1].questions[0].prompt, "1: 4") << "those that are asked are numbered";
  const auto first = find_items(*task, {.file = folder_ + "/a.jsonl", .limit = 1}, nullptr);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first->items.size(), 1U);
  EXPECT_EQ(first->left_out, 1U);
  const auto none = find_items(*task, {.file = write("b.jsonl", left_out)}, nullptr);
  EXPECT_EQ(none.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(none.status().message().find("leaves out all it has, 1 item"), std::string::npos)
      << none.status().message();
}

TEST_F(HarnessData, AMissingFileIsAskedForByItsName) {
  const auto task = parse_task(kTask);
  ASSERT_TRUE(task.ok());
  EXPECT_NE(find_items(*task, {}, nullptr).status().message().find("with --data"), std::string::npos);
  EXPECT_NE(find_items(*task, {.of_grid = true}, nullptr).status().message().find(R"("data": "FILE")"),
            std::string::npos);
  const std::string file = write("a.jsonl", R"({"q": "?", "a": "x"})");
  for (const bool grid : {false, true})
    EXPECT_NE(find_items(*task, {.file = file, .shots = 1, .of_grid = grid}, nullptr)
                  .status()
                  .message()
                  .find(grid ? "\"shots\": 0 asks without them" : "--shots 0 asks without them"),
              std::string::npos);
}

// Of one document, whatever stands in front of it. An instruction is not what items are about.
TEST_F(HarnessData, ItemsOnOneContextShareACluster) {
  const std::string file = write("a.jsonl", R"({"d": "one", "q": "?", "a": "x"}
{"d": "two", "q": "?", "a": "x"}
{"d": "one", "q": "!", "a": "x"}
{"d": "", "q": "!", "a": "x"}
{"d": "", "q": "!", "a": "x"}
)");
  using Clusters = std::vector<std::size_t>;
  EXPECT_EQ(
      clusters(R"({"context": "{{ d }}", "prompt": "{{ q }}", "references": "a", "metrics": ["exact_match"]})", file),
      (Clusters{0, 1, 0, 3, 4}));
  EXPECT_EQ(clusters(R"({"context": "Answer.", "prompt": "{{ d }} {{ q }}", "references": "a",
                         "metrics": ["exact_match"]})",
                     file),
            (Clusters{0, 1, 2, 3, 4}));
  EXPECT_EQ(clusters(R"({"context": "{{ d }}", "prompt": "{{ q }}", "references": "a", "metrics": ["exact_match"],
                         "description": "{{ index }} "})",
                     file),
            (Clusters{0, 1, 0, 3, 4}));
}

// A trial has one fact and one text at all depths.
TEST_F(HarnessData, DepthsOfOneTrialShareACluster) {
  const auto tokenizer = tokenizer_of_file(small_model());
  auto task = built_in_task("generated");
  ASSERT_TRUE(task.ok());
  task->generator = "passkey";
  const auto clusters_of = [&](const std::vector<double>& depths) {
    const auto data = find_items(*task, {.tokens = 512, .count = 2, .depths = depths}, tokenizer.get());
    EXPECT_TRUE(data.ok()) << data.status().message();
    std::vector<std::size_t> found;
    for (const TaskItem& item : data->items) found.push_back(item.cluster);
    return found;
  };
  EXPECT_EQ(clusters_of({0, 0.5, 1}), (std::vector<std::size_t>{0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(clusters_of({}), (std::vector<std::size_t>{0, 1}));
}

}  // namespace
}  // namespace kvasir::test
