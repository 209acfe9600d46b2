// kvasir eval needle and restream, on a model whose recall is known.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <map>

#include "cli/program.h"
#include "gguf/reader.h"
#include "model/vocabulary_from_gguf.h"
#include "support/induction_model.h"
#include "support/shared_data.h"

namespace kvasir::test {
namespace {

class Evaluation : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    path_ = ::testing::TempDir() + "kvasir-induction-" + std::to_string(::getpid());
    const auto small = gguf::File::open(small_model(), {.header_only = true});
    ASSERT_TRUE(small.ok());
    auto vocabulary = vocabulary_from_gguf(*small);
    ASSERT_TRUE(vocabulary.ok());
    write_bytes(path_, make_induction_model({.vocabulary = std::move(*vocabulary), .dtype = "f16"}));
  }
  static void TearDownTestSuite() { std::filesystem::remove(path_); }

  static Arguments arguments(const std::string& kind, const Arguments& more) {
    Arguments all = {"eval", kind, "-m", path_, "-t", "1", "-f", source_dir() + "/examples/the-lamplighter.txt"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  static std::string path_;
};
std::string Evaluation::path_;

TEST_F(Evaluation, SaysWhereTheModelSawMoreThanItWasTrainedFor) {
  const std::string text = bytes_of(source_dir() + "/examples/the-lamplighter.txt");
  for (const Arguments& what : {Arguments{"needle", "--lengths", "3000", "--depths", "0.5", "--trials", "1"},
                                {"ppl", "--chunk", "256"},
                                {"restream", "--distances", "64"}}) {
    Arguments call = {"eval", what.front(), "-m", model_path(), "-f", "-", "--kv", "full", "--kv", "streaming:cap=500"};
    call.insert(call.end(), what.begin() + 1, what.end());
    const Finished done = run_program(call, {.input = text + text});
    EXPECT_EQ(done.exit_code, 0) << done.err;
    EXPECT_EQ(done.error_lines(), 1) << done.err;
    // Where it is known before anything is read, it is said then.
    const bool before = what.front() != "needle";
    EXPECT_NE(done.err.find(before ? "under 'full' the model will see 3" : "under 'full' the model saw 3"),
              std::string::npos)
        << done.err;
    EXPECT_EQ(done.err.find("--window 2048 scores windows of as many") != std::string::npos, what.front() == "ppl");
    EXPECT_EQ(done.err.find("--fill reads less") != std::string::npos, what.front() == "restream");
    EXPECT_NE(done.err.find("it was trained for 2048"), std::string::npos) << done.err;
  }
}

TEST_F(Evaluation, NeedleHasTheFieldsOfTheContract) {
  Arguments call = arguments("needle", {"--lengths", "150,600", "--depths", "0,0.5,1", "--trials", "2", "--seed", "7",
                                        "--kv", "full", "--kv", "window:size=100"});
  const Finished table = run_program(call);
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_EQ(table.err, "");
  EXPECT_EQ(std::ranges::count(table.out, '\n'), 2 * 4) << table.out;
  for (const char* part : {"full (f16", "window:size=100 (f16", "depth 0.5", "100%", " 0%"})
    EXPECT_NE(table.out.find(part), std::string::npos) << part << "\n" << table.out;

  call.emplace_back("--json");
  const Json json = json_of(call);
  EXPECT_EQ(json["lengths"], (Json{150, 600}));
  EXPECT_EQ(json["depths"], (Json{0.0, 0.5, 1.0}));
  EXPECT_EQ(json["trials"], 2);
  EXPECT_EQ(json["seed"], 7);
  EXPECT_EQ(json["chunk"], 256);
  EXPECT_EQ(json["fact"], "The secret number of the {key} is {value}.");
  EXPECT_EQ(json["ask"], "The secret number of the {key} is {value}");
  ASSERT_EQ(json["runs"].size(), 2u);
  for (const Json& run : json["runs"]) {
    EXPECT_EQ(run["codec"], "f16");
    ASSERT_EQ(run["cells"].size(), 6u);
    double exact = 0;
    for (std::size_t i = 0; i < 6; ++i) {
      const Json& cell = run["cells"][i];
      EXPECT_EQ(cell["length"], i < 3 ? 150 : 600);
      EXPECT_EQ(cell["depth"], static_cast<double>(i % 3) / 2);
      EXPECT_EQ(cell["trials"], 2);
      EXPECT_LE(cell["logprob"].get<double>(), 0);
      exact += cell["exact"].get<double>() / 6;
    }
    EXPECT_NEAR(run["exact"].get<double>(), exact, 1e-9);
  }
  const Json& full = json["runs"][0];
  EXPECT_EQ(full["policy"], "full");
  EXPECT_EQ(full["exact"], 1.0);
  EXPECT_GT(full["logprob"].get<double>(), -0.01);
  EXPECT_EQ(full["kept_max"], 604);
  const Json planned =
      json_of({"plan", "-m", path_, "--ctx", "605", "--prompt", "600", "--chunk", "256", "--kv", "full", "--json"});
  EXPECT_EQ(full["kv_bytes_peak"], planned["kv_bytes"]);
  const Json& window = json["runs"][1];
  for (const std::size_t out_of_reach : {3, 4}) EXPECT_EQ(window["cells"][out_of_reach]["exact"], 0.0);
  for (const std::size_t within : {2, 5}) EXPECT_EQ(window["cells"][within]["exact"], 1.0);
  EXPECT_LT(window["kv_bytes_peak"], full["kv_bytes_peak"]);

  // The same again, whatever else is asked; and of its own words.
  const Json again = json_of(arguments("needle", {"--lengths", "600", "--depths", "0.5", "--trials", "2", "--seed", "7",
                                                  "--kv", "window:size=100", "--chunk", "1", "--json"}));
  EXPECT_EQ(again["runs"][0]["cells"][0]["logprob"], window["cells"][4]["logprob"]);
  const Json own = json_of(arguments("needle", {"--lengths", "200", "--depths", "0.5", "--trials", "2", "--fact",
                                                "Of {key}: {value}", "--ask", "Tell of {key}:", "--json"}));
  EXPECT_EQ(own["ask"], "Tell of {key}: {value}");
  EXPECT_EQ(own["runs"][0]["exact"], 1.0);
}

TEST_F(Evaluation, RestreamHasTheFieldsOfTheContract) {
  Arguments call =
      arguments("restream", {"--fill", "1000", "--distances", "128,600", "--kv", "full", "--kv", "window:size=200"});
  const Finished table = run_program(call);
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_EQ(std::ranges::count(table.out, '\n'), 1 + 2 * 2) << table.out;

  call.emplace_back("--json");
  const Json json = json_of(call);
  EXPECT_EQ(json["fill"], 1000);
  EXPECT_EQ(json["chunk"], 256);
  ASSERT_EQ(json["runs"].size(), 2u);
  for (const Json& run : json["runs"]) {
    EXPECT_EQ(run["codec"], "f16");
    ASSERT_EQ(run["distances"].size(), 2u);
    for (std::size_t i = 0; i < 2; ++i) {
      const Json& point = run["distances"][i];
      EXPECT_EQ(point["distance"], i == 0 ? 128 : 600);
      EXPECT_EQ(point["tokens"], i == 0 ? 127 : 599);
      EXPECT_NEAR(point["ppl"].get<double>(), std::exp(point["nll"].get<double>()), 1e-6 * point["ppl"].get<double>());
      EXPECT_GT(point["first_ppl"].get<double>(), 100);
    }
  }
  const auto ppl = [&](std::size_t run, std::size_t at) {
    return json["runs"][run]["distances"][at]["ppl"].get<double>();
  };
  EXPECT_LT(ppl(0, 0), 1.5);
  EXPECT_LT(ppl(0, 1), 1.2);
  EXPECT_LT(ppl(1, 0), 1.5);
  EXPECT_GT(ppl(1, 1), 100);
  EXPECT_EQ(json["runs"][0]["kept_max"], 1600);
  const Json planned = json_of({"plan", "-m", path_, "--ctx", "1000", "--chunk", "256", "--kv", "full", "--json"});
  EXPECT_EQ(json["runs"][0]["kv_bytes_peak"], planned["kv_bytes"]);
}

// The advice follows from the figures beside it.
TEST_F(Evaluation, AdvisesAPolicy) {
  const Json json = json_of(arguments("advise", {"--tokens", "600", "--keep", "25,50", "--trials", "2", "--json"}));
  EXPECT_EQ(json["trials"], 6);
  EXPECT_EQ(json["full_found"], 1);
  ASSERT_EQ(json["runs"].size(), 16u);
  const Json* finds = nullptr;
  std::map<int, const Json*> nearest, bounded;  // by what is kept
  const auto less = [](const Json& one, const Json* best, const char* field) {
    return best == nullptr || one[field].get<double>() < (*best)[field].get<double>();
  };
  for (const Json& run : json["runs"]) {
    EXPECT_TRUE(run["keeps"] == 150 || run["keeps"] == 300);
    if (run["found"] >= 0.95 && less(run, finds, "keeps")) finds = &run;
    const int keeps = run["keeps"].get<int>();
    if (less(run, nearest[keeps], "kld_mean")) nearest[keeps] = &run;
    if (run["bounded_while_reading"] == true && less(run, bounded[keeps], "kld_mean")) bounded[keeps] = &run;
    // The facts lie before what it keeps of the end.
    if (run["policy"].get<std::string>().starts_with("streaming")) {
      EXPECT_LT(run["found"], 1);
    }
  }
  ASSERT_NE(finds, nullptr);
  const auto said = [&](const std::string& purpose) { return json["advice"][purpose].get<std::string>(); };
  const auto keeps = [](const Json& run) { return (run)["keeps"].get<int>(); };
  const auto named = std::ranges::find_if(json["runs"], [&](const Json& run) {
    return said("to ask at the end of a text") == "--kv " + run["policy"].get<std::string>();
  });
  ASSERT_NE(named, json["runs"].end());
  EXPECT_EQ(keeps(*named), keeps(*finds));
  EXPECT_GE((*named)["found"], 0.95);
  for (const int kept : {150, 300}) {
    const std::string keeping = fmt::format(", keeping {}", kept);
    EXPECT_EQ(said("to go on with a text" + keeping), "--kv " + (*nearest[kept])["policy"].get<std::string>());
    EXPECT_EQ(said("to go on with a text longer than memory" + keeping),
              "--kv " + (*bounded[kept])["policy"].get<std::string>());
  }
  const auto refused = [&](const Arguments& more, const std::string& part) {
    const Finished done = run_program(arguments("advise", more));
    EXPECT_NE(done.exit_code, 0);
    EXPECT_NE(done.err.find(part), std::string::npos) << done.err;
  };
  refused({"--keep", "0"}, "--keep 0 is outside 1 to 99 percent");
  refused({"--tokens", "1000"}, "too few for two windows of 1000");
  refused({"--tokens", "100"}, "--tokens 100 is outside 128");
}

// The program that writes such models, as scripts would use it.
TEST_F(Evaluation, WrittenModelsAreThese) {
  const std::string written = path_ + "-written";
  const std::string writer =
      (std::filesystem::path(binary_path()).parent_path() / "kvasir_write_induction_model").string();
  const std::string command = "'" + writer + "' '" + written + "' --dtype f16 --vocabulary-of '" + small_model() + "'";
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  EXPECT_EQ(json_of({"info", written, "--json"})["runs"], true);
  EXPECT_TRUE(bytes_of(path_) == bytes_of(written));
  std::filesystem::remove(written);
}

}  // namespace
}  // namespace kvasir::test
