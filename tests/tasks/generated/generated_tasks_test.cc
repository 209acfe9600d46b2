// Generated tasks: every task on two tokenizers, its answers found again from the text of the prompt.
#include "tasks/generated/generated_tasks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <set>

#include "tasks/definitions.h"
#include "tasks/generated/solvers.h"
#include "tasks/task.h"
#include "text/vocabularies.h"

namespace kvasir::test {
namespace {

std::string tale() {
  std::ifstream file(source_dir() + "/examples/the-lamplighter.txt");
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// A tokenizer of 2 to 5 bytes per token, and one of single bytes.
enum class Kind { kSmallModel, kBytes };

const Tokenizer& tokenizer_of_kind(Kind kind) {
  static const std::unique_ptr<Tokenizer> small = tokenizer_of_file(small_model());
  static const std::unique_ptr<Tokenizer> bytes = tokenizer_of(bpe_vocabulary());
  return kind == Kind::kSmallModel ? *small : *bytes;
}

std::vector<std::int64_t> sizes_of_kind(Kind kind) {
  return kind == Kind::kSmallModel ? std::vector<std::int64_t>{1500, 4096} : std::vector<std::int64_t>{6000, 20000};
}

Result<std::vector<GeneratedItem>> generate(GenerateItems options, Kind kind = Kind::kSmallModel) {
  static const std::string filler = tale();
  if (options.filler.empty()) options.filler = filler;
  return generate_items(tokenizer_of_kind(kind), options);
}

std::vector<GeneratedItem> items(GenerateItems options, Kind kind = Kind::kSmallModel) {
  auto made = generate(std::move(options), kind);
  EXPECT_TRUE(made.ok()) << made.status().message();
  return made.ok() ? std::move(*made) : std::vector<GeneratedItem>();
}

// The prompts of an item with their answers: one per turn.
struct Asked {
  std::string prompt;
  std::vector<std::string> outputs;
};

std::vector<Asked> asked(const GeneratedItem& item) {
  std::vector<Asked> all;
  const auto add = [&](const std::string& context, const GeneratedItem& turn) {
    all.push_back({context + turn["input"].get<std::string>() + turn["answer_prefix"].get<std::string>(),
                   turn["outputs"].get<std::vector<std::string>>()});
  };
  if (item.contains("turns")) {
    for (const GeneratedItem& turn : item["turns"]) add(item["context"], turn);
  } else {
    add("", item);
  }
  return all;
}

std::string whole(const GeneratedItem& item) {
  if (!item.contains("turns")) return asked(item)[0].prompt;
  std::string text = item["context"];
  for (const GeneratedItem& turn : item["turns"])
    text += turn["input"].get<std::string>() + turn["answer_prefix"].get<std::string>() +
            turn["outputs"][0].get<std::string>();
  return text;
}

// Bytes, and so at least the tokens, of the largest unit of haystack, with what a unit more may change.
double largest_unit(const std::string& task) {
  const std::map<std::string, double> sizes = {
      {"niah_multikey_2", 90}, {"niah_multikey_3", 125}, {"cwe", 100},     {"qa_1", 150},
      {"qa_2", 170},           {"kv_retrieval", 85},     {"kv_multi", 85}, {"kv_turns", 85}};
  return sizes.contains(task) ? sizes.at(task) : 0;
}

int occurrences(const std::string& text, const std::string& what) {
  int found = 0;
  for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; ++at) ++found;
  return found;
}

class Tasks : public testing::TestWithParam<std::tuple<int, Kind>> {
 protected:
  const GeneratedTask& task() const { return generated_tasks()[static_cast<std::size_t>(std::get<0>(GetParam()))]; }
  std::string name() const { return std::string(task().name); }
  Kind kind() const { return std::get<1>(GetParam()); }
};

TEST_P(Tasks, FillThePromptAndHaveTheirAnswers) {
  for (const std::int64_t tokens : sizes_of_kind(kind()))
    for (const std::uint64_t seed : {1, 2, 3})
      for (const GeneratedItem& item : items({.task = name(), .tokens = tokens, .count = 4, .seed = seed}, kind())) {
        SCOPED_TRACE(name() + " " + item["index"].dump() + " of " + std::to_string(tokens));
        const std::string text = whole(item);
        const auto length = static_cast<std::int64_t>(encode(tokenizer_of_kind(kind()), text, kNoSpecial).size());
        EXPECT_EQ(item["length"], length);
        EXPECT_LE(length, tokens);
        const auto size = static_cast<double>(tokens);
        EXPECT_GE(static_cast<double>(length), size - std::max(0.03 * size, largest_unit(name())));
        EXPECT_EQ(item.contains("turns"), task().turns);
        EXPECT_EQ(item.contains("depth"), task().depth);
        for (Asked& one : asked(item)) {
          if (any_order(name())) std::ranges::sort(one.outputs);
          EXPECT_EQ(solve(name(), one.prompt), one.outputs);
          EXPECT_EQ(std::set(one.outputs.begin(), one.outputs.end()).size(), one.outputs.size());
          EXPECT_FALSE(one.outputs.empty());
          // The answer is in the haystack once, and the question does not give it away.
          if (name().starts_with("niah") || name().starts_with("kv") || name() == "copying" || name() == "needle") {
            for (const std::string& output : one.outputs) EXPECT_EQ(occurrences(one.prompt, output), 1) << output;
          }
        }
      }
}

// A context is what a model may read before it knows the question: all of the haystack, and none of the question.
TEST_P(Tasks, HideTheirAnswersInTheContext) {
  const auto task = parse_task(
      std::ranges::find(task_definitions(), this->task().turns ? "generated_turns" : "generated", &TaskDefinition::name)
          ->text);
  ASSERT_TRUE(task.ok());
  std::vector<double> depths;
  if (this->task().depth) depths = {0, 0.5, 1};
  for (const GeneratedItem& made :
       items({.task = name(), .tokens = sizes_of_kind(kind()).back(), .count = 2, .depths = depths}, kind())) {
    SCOPED_TRACE(made["index"].dump());
    const auto item = make_item(*task, made, 0, {});
    ASSERT_TRUE(item.ok()) << item.status().message();
    std::size_t number = 0;
    for (const Question& question : item->questions) {
      const GeneratedItem& turn = this->task().turns ? made["turns"][number++] : made;
      EXPECT_EQ(question.prompt, turn["question"].get<std::string>());
      EXPECT_LT(question.prompt.size(), 700U);
      for (const std::string& output : turn["outputs"].get<std::vector<std::string>>())
        if (this->task().depth || name().starts_with("kv") || name().starts_with("niah")) {
          EXPECT_EQ(occurrences(question.prompt, output), 0) << output;
          EXPECT_EQ(occurrences(item->context, output), name() == "passkey" ? 2 : 1) << output;
        }
    }
    if (!this->task().turns) {
      EXPECT_EQ(item->context + item->questions.front().prompt, made["input"].get<std::string>());
    }
  }
}

TEST_P(Tasks, PutTheNeedleAtItsDepth) {
  if (!task().depth) return;
  const std::vector<double> depths = {0, 0.1, 0.25, 0.5, 0.9, 1};
  const std::int64_t tokens = sizes_of_kind(kind()).back();
  const auto made = items({.task = name(), .tokens = tokens, .count = 3, .depths = depths}, kind());
  ASSERT_EQ(made.size(), 3 * depths.size());
  for (std::size_t trial = 0; trial < 3; ++trial) {
    std::vector<double> places;
    for (std::size_t depth = 0; depth < depths.size(); ++depth) {
      const GeneratedItem& item = made[trial * depths.size() + depth];
      EXPECT_EQ(item["depth"], depths[depth]);
      EXPECT_EQ(item["outputs"], made[trial * depths.size()]["outputs"]);
      places.push_back(static_cast<double>(item["input"].get<std::string>().find(item["outputs"][0])));
    }
    const auto text = static_cast<double>(made[trial * depths.size()]["input"].get<std::string>().size());
    EXPECT_LT(places.front(), 500);
    EXPECT_GT(places.back(), text - 500);
    for (std::size_t depth = 0; depth < depths.size(); ++depth)
      EXPECT_NEAR(places[depth], places.front() + depths[depth] * (places.back() - places.front()), 0.03 * text)
          << name() << " " << depths[depth];
  }
}

TEST_P(Tasks, DrawDepthsThatDiffer) {
  if (!task().depth) return;
  std::set<double> depths;
  for (const GeneratedItem& item :
       items({.task = name(), .tokens = sizes_of_kind(kind()).front(), .count = 20}, kind())) {
    const double depth = item["depth"];
    depths.insert(depth);
    const auto text = item["input"].get<std::string>();
    EXPECT_NEAR(static_cast<double>(text.find(item["outputs"][0])) / static_cast<double>(text.size()), depth, 0.2);
  }
  EXPECT_GT(depths.size(), 8u);
  EXPECT_LT(*depths.begin(), 0.3);
  EXPECT_GT(*depths.rbegin(), 0.7);
}

TEST_P(Tasks, DependOnWhatTheyMayAlone) {
  const std::int64_t tokens = sizes_of_kind(kind()).front();
  const GenerateItems options{.task = name(), .tokens = tokens, .count = 3, .seed = 7};
  const auto first = items(options, kind());
  ASSERT_EQ(first.size(), 3u);
  EXPECT_EQ(items(options, kind()), first);
  GenerateItems more = options;
  more.count = 5;
  auto longer = items(more, kind());
  longer.resize(3);
  EXPECT_EQ(longer, first);
  GenerateItems other = options;
  other.seed = 8;
  std::set<std::string> texts;
  for (const auto& some : {first, items(other, kind())})
    for (const GeneratedItem& item : some) texts.insert(whole(item));
  EXPECT_EQ(texts.size(), 6u);
  if (!task().depth) return;
  other = options;
  other.depths = {0.5, 0.2};
  const auto two = items(other, kind());
  other.depths = {0.2};
  const auto one = items(other, kind());
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_EQ(whole(one[i]), whole(two[2 * i + 1]));
}

TEST_P(Tasks, RefuseWhatHasNoRoom) {
  for (const std::int64_t tokens : {std::int64_t{1}, std::int64_t{20}}) {
    const auto made = generate({.task = name(), .tokens = tokens}, kind());
    ASSERT_FALSE(made.ok()) << tokens;
    EXPECT_EQ(made.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(made.status().message().find(name() + " needs "), std::string::npos) << made.status().message();
  }
  // The number in the message is about right: items of other sizes have other names and numbers.
  const std::string message = generate({.task = name(), .tokens = 20}, kind()).status().message();
  const std::int64_t needed = std::stoll(message.substr(name().size() + 7));
  for (const GeneratedItem& item : items({.task = name(), .tokens = needed * 13 / 10, .count = 1}, kind()))
    for (Asked& one : asked(item)) {  // the smallest prompts have one answer too
      if (any_order(name())) std::ranges::sort(one.outputs);
      EXPECT_EQ(solve(name(), one.prompt), one.outputs) << message;
    }
  EXPECT_FALSE(generate({.task = name(), .tokens = needed * 7 / 10, .count = 1}, kind()).ok()) << message;
}

INSTANTIATE_TEST_SUITE_P(All, Tasks,
                         testing::Combine(testing::Range(0, static_cast<int>(generated_tasks().size())),
                                          testing::Values(Kind::kSmallModel, Kind::kBytes)),
                         [](const auto& test) {
                           const auto task = static_cast<std::size_t>(std::get<0>(test.param));
                           return std::string(generated_tasks()[task].name) +
                                  (std::get<1>(test.param) == Kind::kBytes ? "_bytes" : "_small_model");
                         });

TEST(GeneratedTasks, AreThoseOfRulerAndOthers) {
  std::set<std::string_view> names;
  for (const GeneratedTask& task : generated_tasks()) {
    names.insert(task.name);
    EXPECT_FALSE(task.summary.empty());
    EXPECT_GT(task.answer_tokens, 0);
  }
  EXPECT_EQ(names.size(), generated_tasks().size());
  EXPECT_EQ(names.size(), 20u);
  for (const char* name : {"niah_single_1", "niah_multikey_3", "niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe",
                           "qa_1", "qa_2", "passkey", "kv_turns"})
    EXPECT_TRUE(names.contains(name)) << name;
}

// Lists of more words than there are take pairs, all different.
TEST(GeneratedTasks, LongListsHaveWordsEnough) {
  for (const GeneratedItem& item : items({.task = "cwe", .tokens = 60000, .count = 1}, Kind::kBytes)) {
    EXPECT_NE(item["outputs"][0].get<std::string>().find('-'), std::string::npos);
    EXPECT_GE(item["length"], 58200);
    auto outputs = item["outputs"].get<std::vector<std::string>>();
    std::ranges::sort(outputs);
    EXPECT_EQ(solve("cwe", whole(item)), outputs);
  }
}

TEST(GeneratedTasks, FollowTheFiller) {
  const GenerateItems options{.task = "niah_single_2", .tokens = 1500, .count = 1};
  std::string words;
  for (int i = 0; i < 64; ++i) words += "word" + std::to_string(i) + "\n\t ";
  GenerateItems other = options;
  other.filler = words;
  const std::string text = whole(items(other).at(0));
  EXPECT_NE(text.find("word0 word1 word2"), std::string::npos);
  EXPECT_NE(text.find("word63 word0"), std::string::npos);
  EXPECT_NE(text, whole(items(options).at(0)));
  // Other tasks do not.
  GenerateItems noise = other;
  noise.task = "vt";
  EXPECT_EQ(items(noise), items({.task = "vt", .tokens = 1500, .count = 1}));
}

TEST(GeneratedTasks, OneWordOfManyBytesEnds) {
  std::string words = std::string(5000, 'x');
  for (int i = 0; i < 63; ++i) words += " w";
  const auto made = items({.task = "niah_single_2", .tokens = 3000, .count = 1, .filler = words}, Kind::kBytes);
  ASSERT_EQ(made.size(), 1u);
  EXPECT_LT(made[0]["length"], 600);  // one word more would be too much
}

TEST(GeneratedTasks, RefuseWhatIsWrong) {
  const std::string filler = tale();
  struct Wrong {
    GenerateItems options;
    std::string says;
    std::string_view setting;
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const Wrong& wrong : std::vector<Wrong>{
           {{.task = "nope"}, "there is no task 'nope'; choose one of niah_single_1, ", "task"},
           {{.task = ""}, "there is no task ''", "task"},
           {{.task = "vt", .tokens = 0}, "outside 1 to 16777216", "tokens"},
           {{.task = "vt", .tokens = -5}, "outside 1 to 16777216", "tokens"},
           {{.task = "vt", .tokens = (1 << 24) + 1}, "outside 1 to 16777216", "tokens"},
           {{.task = "vt", .count = 0}, "outside 1 to 100000 items", "count"},
           {{.task = "vt", .count = -1}, "outside 1 to 100000 items", "count"},
           {{.task = "vt", .count = 100001}, "outside 1 to 100000 items", "count"},
           {{.task = "needle", .count = 50001, .depths = {0, 1}}, "outside 1 to 100000 items", "count"},
           {{.task = "vt", .depths = {0.5}}, "vt has no depth", "depths"},
           {{.task = "needle", .depths = {0.5, 1.01}}, "a depth of 1.01 is outside 0 to 1", "depths"},
           {{.task = "needle", .depths = {-0.1}}, "outside 0 to 1", "depths"},
           {{.task = "needle", .depths = {nan}}, "outside 0 to 1", "depths"},
           {{.task = "needle", .filler = " "}, "the filler has 0 words; give a text of 64", "filler"},
           {{.task = "needle", .filler = "Too short."}, "the filler has 2 words", "filler"},
           {{.task = "needle", .filler = "bad \xff"}, "UTF-8", "filler"},
           {{.task = "needle", .filler = "cut \xe2\x82"}, "UTF-8", "filler"},
       }) {
    const auto made = generate(wrong.options);
    ASSERT_FALSE(made.ok()) << wrong.says;
    EXPECT_EQ(made.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(made.status().message().find(wrong.says), std::string::npos) << made.status().message();
    EXPECT_EQ(made.status().message().find('\n'), std::string::npos);
    ASSERT_FALSE(made.status().settings().empty());
    EXPECT_EQ(made.status().settings()[0], wrong.setting);
  }
}

// A vocabulary that leaves nearly all text out ends with an error.
TEST(GeneratedTasks, TokenizersThatLeaveTextOut) {
  Vocabulary vocabulary;
  vocabulary.tokenizer = TokenizerKind::kBpe;
  vocabulary.pre_tokenizer = "gpt-2";
  for (const char c : std::string("QXZ")) add_piece(&vocabulary, std::string(1, c));
  vocabulary.add_bos = false;
  const auto tokenizer = tokenizer_of(std::move(vocabulary));
  ASSERT_NE(tokenizer, nullptr);
  for (const GeneratedTask& task : generated_tasks()) {
    const std::string filler = tale();
    const auto made =
        generate_items(*tokenizer, {.task = std::string(task.name), .tokens = 900, .count = 1, .filler = filler});
    ASSERT_FALSE(made.ok()) << task.name;
    EXPECT_NE(made.status().message().find("use another model"), std::string::npos) << made.status().message();
  }
}

std::string hash_of(const GeneratedItem& item) {
  const std::string text = item.dump();
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return std::to_string(hash);
}

// Leaves out what repeats the end of an input.
GeneratedItem without_question(GeneratedItem item) {
  item.erase("question");
  if (item.contains("turns"))
    for (GeneratedItem& turn : item["turns"]) turn.erase("question");
  return item;
}

// The bytes of items, which change only on purpose. KVASIR_WRITE_GOLDEN=FILE writes them.
TEST(GeneratedTasks, Golden) {
  const std::string path = source_dir() + "/tests/tasks/generated/golden.jsonl";
  std::vector<std::string> lines;
  for (const GeneratedTask& task : generated_tasks()) {
    const GenerateItems options{.task = std::string(task.name), .tokens = 1500, .count = 2, .seed = 5};
    GeneratedItem hashes = GeneratedItem::array();
    for (const GeneratedItem& item : items(options)) hashes.push_back(hash_of(without_question(item)));
    lines.push_back(GeneratedItem{{"task", task.name}, {"hashes", hashes}}.dump());
  }
  for (const char* task : {"niah_single_3", "fwe", "kv_turns", "arithmetic_chain", "qa_2"})
    lines.push_back(without_question(items({.task = task, .tokens = 900, .count = 1, .seed = 6}).at(0)).dump());
  if (const char* written = std::getenv("KVASIR_WRITE_GOLDEN")) {
    std::ofstream file(written);
    for (const std::string& line : lines) file << line << '\n';
    return;
  }
  std::ifstream file(path);
  for (const std::string& line : lines) {
    std::string golden;
    std::getline(file, golden);
    EXPECT_EQ(line, golden);
  }
  std::string rest;
  EXPECT_FALSE(std::getline(file, rest));
}

}  // namespace
}  // namespace kvasir::test
