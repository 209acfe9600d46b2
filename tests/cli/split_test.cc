// A model in parts: every command gives what it gives for the whole file, through any part's name.
#include <filesystem>
#include <fstream>

#include "cli/program.h"
#include "support/split_model.h"
#include "tiers/small_disk.h"

namespace kvasir::test {
namespace {

class SplitModel : public ::testing::Test {
 protected:
  const TemporaryFolder folder_;
  // The first has no tensors.
  const std::vector<std::string> parts_ = split_file(model_path(), folder_.path() + "/mini", 4, true);
};

Json run(const std::string& model, const Arguments& more) {
  Arguments all = {"run", "-m", model, "-t", "1", "--temp", "0", "--ignore-eos", "--json"};
  all.insert(all.end(), more.begin(), more.end());
  return json_of(all);
}

TEST_F(SplitModel, GreedyTextAndLogProbabilitiesAreTheSame) {
  for (const std::string policy : {"full", "h2o:budget=64,recent=32"}) {
    const Arguments more = {"-p", some_text(200), "-n", "40", "--logprobs", "5", "--kv", policy};
    const Json whole = run(model_path(), more);
    ASSERT_EQ(whole["tokens"], 40);
    for (const std::string& part : parts_) {
      const Json split = run(part, more);
      for (const char* field : {"text", "tokens", "prompt_tokens", "logprobs"})
        EXPECT_EQ(split[field], whole[field]) << part << ": " << field;
    }
  }
}

TEST_F(SplitModel, PerplexityIsTheSame) {
  const std::string text = folder_.path() + "/text";
  std::ofstream(text) << some_text(400);
  const auto ppl = [&](const std::string& model) {
    const Json json = json_of({"eval", "ppl", "-m", model, "-f", text, "-t", "1", "--kv", "full", "--json"});
    return json["runs"][0]["ppl"].get<double>();
  };
  const double whole = ppl(model_path());
  EXPECT_GT(whole, 1);
  EXPECT_EQ(ppl(parts_[3]), whole);
}

TEST_F(SplitModel, ASessionOfOneIsContinuedByTheOther) {
  const Arguments text = {"-p", some_text(100), "-n", "20"};
  const std::string session = folder_.path() + "/session";
  for (const auto& [saves, loads] : {std::pair{model_path(), parts_[1]}, std::pair{parts_[0], model_path()}}) {
    run(saves, {"-p", some_text(100), "-n", "20", "--save", session});
    const Json through = run(saves, {"--load", session, "-n", "20"});
    EXPECT_EQ(run(loads, {"--load", session, "-n", "20"})["text"], through["text"]);
    EXPECT_EQ(through["tokens"], 20);
  }
}

TEST_F(SplitModel, PlanInfoAndTokenizeSayTheSame) {
  const auto plan = [](const std::string& model) {
    return json_of({"plan", "-m", model, "--ctx", "1000", "--memory", "1GiB", "--json"});
  };
  const auto info = [](const std::string& model) {
    Json json = json_of({"info", model, "--json"});
    json["memory"].erase("available_bytes");
    return json;
  };
  const auto ids = [](const std::string& model) {
    return json_of({"tokenize", "-m", model, "-p", some_text(50), "--json"});
  };
  Json whole = info(model_path());
  EXPECT_EQ(whole["parts"], 1);
  std::uint64_t bytes = 0;
  for (const std::string& part : parts_) bytes += std::filesystem::file_size(part);
  for (const std::string& part : parts_) {
    EXPECT_EQ(plan(part), plan(model_path()));
    EXPECT_EQ(ids(part), ids(model_path()));
    Json split = info(part);
    EXPECT_EQ(split["parts"], 4);
    EXPECT_EQ(split["size_bytes"], bytes);
    split["parts"] = 1;
    split["size_bytes"] = whole["size_bytes"];
    EXPECT_EQ(split, whole);
  }
  EXPECT_NE(run_program({"info", parts_[2]}).out.find(" in 4 parts, 56 tensors"), std::string::npos);
}

TEST_F(SplitModel, AFaultIsOneLineThatNamesThePart) {
  std::filesystem::remove(parts_[2]);
  const std::string missing =
      "'" + parts_[2] + "' is missing: it is part 3 of 4 of this model; put all parts in one folder";
  for (const std::string& part : {parts_[0], parts_[3]})
    for (const Arguments& all : std::vector<Arguments>{{"run", "-m", part, "-p", "x"},
                                                       {"serve", "-m", part, "--port", "0"},
                                                       {"plan", "-m", part},
                                                       {"info", part},
                                                       {"tokenize", "-m", part, "-p", "x"}})
      expect_refused(all, 2, missing);
  std::filesystem::copy_file(parts_[1], parts_[2]);
  expect_refused({"run", "-m", parts_[0], "-p", "x"}, 2,
                 "'" + parts_[2] +
                     "' holds part 2 of 4 where part 3 of 4 belongs; give each part its own name, or download it "
                     "again");
}

TEST_F(SplitModel, NoPartIsOverwritten) {
  const std::string before = bytes_of(parts_[2]);
  expect_refused({"run", "-m", parts_[0], "-p", "x", "--save", parts_[2]}, 2,
                 "'" + parts_[2] + "' is the file that is read, and would be overwritten; give another name");
  EXPECT_EQ(bytes_of(parts_[2]), before);
}

}  // namespace
}  // namespace kvasir::test
