// `kvasir demo` on the bundled model and on the default one: what `scripts/run` shows a newcomer. Each policy's row
// follows from its answer.
#include <algorithm>
#include <cmath>

#include "cli/program.h"
#include "support/real_model.h"
#include "support/shared_data.h"

namespace kvasir::test {
namespace {

std::string tale() {
  return source_dir() + "/examples/the-bell-of-saint-anne.txt";
}

// Two numbers: the answer comes from the text.
TEST(Demo, FindsWhatIsKeptAndForgetsTheRest) {
  for (const std::string number : {"48213", "70596"}) {
    SCOPED_TRACE(number);
    const Json shown = json_of({"demo", "-m", bundled_model(), "-f", tale(), "--number", number, "--json"});
    const Json& full = shown["answers"][0];
    EXPECT_TRUE(full["found"]) << full;
    EXPECT_EQ(full["answer"], number);
    EXPECT_EQ(full["dropped"], 0);
    EXPECT_GT(full["seen"], 7900);
    const Json& snapkv = shown["answers"][1];
    EXPECT_TRUE(snapkv["found"]) << snapkv;
    EXPECT_LT(snapkv["kept"], 600);
    const Json& streaming = shown["answers"][2];
    EXPECT_FALSE(streaming["found"]) << streaming;
    EXPECT_EQ(streaming["kept"], 512);
    EXPECT_GT(streaming["dropped"], 7000);
    EXPECT_LT(streaming["bytes"].get<double>(), full["bytes"].get<double>() / 12);
    const Json& writes = shown["continuation"];
    EXPECT_GT(writes["seen"], writes["context"]);
    EXPECT_EQ(writes["tokens"], 400);
    EXPECT_EQ(writes["bytes"], writes["bytes_begin"]);
  }
}

// README.md shows these answers and figures.
TEST(Demo, TheDefaultModelAnswersInWordsAndWritesBeyondItsCache) {
  KVASIR_REAL_MODEL_OR_SKIP(model);
  const Json shown = json_of({"demo", "-m", model, "--json"});
  const auto mebibytes = [](const Json& bytes) { return std::round(bytes.get<double>() / (1 << 20) * 10) / 10; };
  const auto expect_memory = [&](const Json& row, double bytes, double peak) {
    EXPECT_EQ(mebibytes(row["bytes"]), bytes) << row;
    EXPECT_EQ(mebibytes(row["bytes_peak"]), peak) << row;
  };
  const Json& answers = shown["answers"];
  ASSERT_EQ(answers.size(), 3);
  EXPECT_EQ(answers[0]["answer"], "48213");
  EXPECT_EQ(answers[0]["seen"], 4757);
  EXPECT_EQ(answers[0]["dropped"], 0);
  expect_memory(answers[0], 105.0, 105.0);
  EXPECT_EQ(answers[1]["answer"], "48213");
  EXPECT_EQ(answers[1]["kept"], 519);
  expect_memory(answers[1], 16.7, 116.4);
  EXPECT_EQ(answers[2]["answer"], "11");
  EXPECT_FALSE(answers[2]["found"]);
  EXPECT_EQ(answers[2]["kept"], 512);
  EXPECT_EQ(answers[2]["dropped"], 4242);
  expect_memory(answers[2], 12.7, 23.3);
  const Json& words = shown["question_answers"];
  ASSERT_EQ(words.size(), 3);
  EXPECT_EQ(words[0]["answer"], "The lamplighter is Josiah Penrose.");
  EXPECT_EQ(words[1]["answer"], "The lamplighter is Josiah Penrose.");
  EXPECT_GT(words[1]["dropped"], 1000);
  // What the model makes up depends on the last bits of its sums, thus on the kernels. It is a sentence, and not the
  // name.
  const std::string made_up = words[2]["answer"];
  EXPECT_EQ(made_up.rfind("The lamplighter is ", 0), 0) << made_up;
  EXPECT_EQ(made_up.find("Penrose"), std::string::npos) << made_up;
  EXPECT_FALSE(words[2]["found"]);
  const Json& story = shown["continuation"];
  EXPECT_EQ(story["tokens"], 400);
  EXPECT_EQ(story["kept"], 256);
  EXPECT_EQ(mebibytes(story["bytes_peak"]), 7.1);
}

// Another number: the answer comes from the text.
TEST(Demo, TheDefaultModelFindsAnotherNumber) {
  KVASIR_REAL_MODEL_OR_SKIP(model);
  const Json shown =
      json_of({"demo", "-m", model, "-n", "0", "--number", "70596", "--kv", "snapkv:budget=512", "--json"});
  EXPECT_EQ(shown["answers"][0]["answer"], "70596");
  EXPECT_LT(shown["answers"][0]["kept"], 600);
}

// Without -f the text is a tale that the program carries: the same as the file.
TEST(Demo, CarriesItsTale) {
  const Json own = json_of({"demo", "-m", bundled_model(), "-n", "0", "--kv", "streaming:cap=512", "--json"});
  const Json file =
      json_of({"demo", "-m", bundled_model(), "-f", tale(), "-n", "0", "--kv", "streaming:cap=512", "--json"});
  EXPECT_EQ(own["answers"][0]["answer"], file["answers"][0]["answer"]);
  EXPECT_EQ(own["answers"][0]["seen"], file["answers"][0]["seen"]);
  EXPECT_FALSE(own.contains("question_answers"));
}

// What is demoted is still there: an answer that misses it is no proof that it was forgotten.
TEST(Demo, CallsDemotedTokensDemoted) {
  const Finished done = run_program({"demo", "-m", bundled_model(), "-f", tale(), "-n", "0", "--kv",
                                     "streaming:cap=64@demote=q2,recall=1", "--number", "12345"});
  ASSERT_EQ(done.exit_code, 0) << done.err;
  EXPECT_EQ(done.out.find("forgotten"), std::string::npos) << done.out;
  // Kernels of another table may find it after all.
  if (done.out.find(": found") == std::string::npos) {
    EXPECT_NE(done.out.find(" demoted, the first is token 4"), std::string::npos) << done.out;
  }
}

TEST(Demo, ShowsATableThatSaysWhatWasForgotten) {
  const Finished done = run_program({"demo", "-m", bundled_model(), "-f", tale(), "-n", "0", "--kv", "full", "--kv",
                                     "streaming:cap=512", "--number", "12345"});
  ASSERT_EQ(done.exit_code, 0) << done.err;
  EXPECT_NE(done.out.find("  12345: found\n"), std::string::npos) << done.out;
  EXPECT_NE(done.out.find(": forgotten: 7"), std::string::npos) << done.out;
  EXPECT_NE(done.out.find("tokens dropped, the first is token 4\n"), std::string::npos) << done.out;
  EXPECT_EQ(std::ranges::count(done.out, '\n'), 10) << done.out;
}

TEST(Demo, WrongInput) {
  const auto error = [](const Arguments& more) {
    Arguments call = {"demo", "-m", bundled_model()};
    call.insert(call.end(), more.begin(), more.end());
    const Finished done = run_program(call);
    EXPECT_EQ(done.exit_code, 2);
    EXPECT_EQ(done.error_lines(), 1) << done.err;
    return done.err;
  };
  EXPECT_EQ(error({"-f", tale(), "--number", "12a"}), "kvasir: --number '12a' is not 1 to 9 digits\n");
  EXPECT_EQ(error({"-f", "/dev/null"}), "kvasir: '/dev/null' is empty; give a file with text\n");
  EXPECT_EQ(error({"-f", tale(), "--tokens", "-2"}), "kvasir: --tokens is -2; it must be at least 0\n");
  EXPECT_NE(error({"-f", tale(), "--kv", "ful"}).find("unknown retention policy 'ful'"), std::string::npos);
}

}  // namespace
}  // namespace kvasir::test
