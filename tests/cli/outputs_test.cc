// Files that commands write: never over what they read, never in place of a closed stream, never half.
#include <cstdlib>
#include <filesystem>
#include <iterator>

#include "cli/program.h"
#include "replay/trace_file.h"

namespace kvasir::test {
namespace {

class Outputs : public ::testing::Test {
 protected:
  Folder folder_;
  std::string text_ = folder_.make("text", some_text(300));
};

TEST_F(Outputs, InputsAreNotOverwritten) {
  const std::string before = bytes_of(text_);
  const std::string link = folder_.path("link");
  std::filesystem::create_symlink(text_, link);
  for (const std::string& out : {text_, link, folder_.path("./text")})
    for (const Arguments& all : std::vector<Arguments>{
             {"record", "-m", model_path(), "-f", text_, "--tokens", "16", "-o", out},
             {"inspect", "-m", model_path(), "-f", text_, "--tokens", "64", "--report", out},
             {"eval", "ppl", "-m", model_path(), "-f", text_, "--tokens", "64", "--report", out},
             {"eval", "needle", "-m", model_path(), "-f", text_, "--lengths", "100", "--report", out},
             {"eval", "restream", "-m", model_path(), "-f", text_, "--fill", "100", "--report", out},
             {"record", "-m", text_, "-f", model_path(), "-o", out}}) {
      expect_refused(all, 2, "'" + out + "' is the file that is read, and would be overwritten; give another name");
      EXPECT_EQ(bytes_of(text_), before);
    }
}

TEST_F(Outputs, ClosedStreamsAreNotTakenForFiles) {
  const std::string out = folder_.path("out.npy");
  const std::string record =
      "'" + binary_path() + "' record -t 1 -m '" + model_path() + "' -f '" + text_ + "' --tokens 16 -o '" + out + "'";
  EXPECT_NE(std::system((record + " <&- >&- 2>&-").c_str()), 0);
  EXPECT_NE(std::system((record + " >&- 2>/dev/null").c_str()), 0);
  EXPECT_EQ(json_of({"replay", "--policy", "full", "--trace", out, "--json"})["tokens"], 16);
  const std::string report = folder_.path("page.html");
  const std::string ppl = "'" + binary_path() + "' eval ppl -t 1 -m '" + model_path() + "' -f '" + text_ +
                          "' --tokens 64 --report '" + report + "' >&- 2>/dev/null";
  EXPECT_NE(std::system(ppl.c_str()), 0);
  EXPECT_EQ(
      std::system(
          ("'" + binary_path() + "' tokenize -m '" + model_path() + "' <&- 2>&1 | grep -q 'cannot read'").c_str()),
      0);
}

TEST_F(Outputs, FilesOfThatNameAreNotTaken) {
  const std::string out = folder_.path("out");
  for (const Arguments& all :
       std::vector<Arguments>{{"record", "-m", model_path(), "-f", text_, "--tokens", "16", "-o", out},
                              {"inspect", "-m", model_path(), "-f", text_, "--tokens", "64", "--report", out}}) {
    const std::string mine = folder_.make("out.partial", "mine");
    EXPECT_EQ(run_program(all).exit_code, 0);
    EXPECT_GT(std::filesystem::file_size(out), 1000u);
    EXPECT_EQ(bytes_of(mine), "mine");
    EXPECT_FALSE(std::filesystem::exists(mine + "-2"));
  }
}

TEST_F(Outputs, AHangupLeavesNothing) {
  const std::string longer = folder_.make("longer", some_text(4000));
  const std::string out = folder_.path("out.npy");
  const Finished done = run_program(
      {"record", "-m", model_path(), "-t", "1", "--isa", "generic", "--tokens", "2048", "-f", longer, "-o", out},
      {.interrupt = Interrupt::kCaught, .interrupt_after = 0.5, .signal = SIGHUP});
  EXPECT_EQ(done.exit_code, 1) << "signal " << done.signal;
  EXPECT_FALSE(std::filesystem::exists(out));
  EXPECT_FALSE(std::filesystem::exists(out + ".partial"));
}

TEST_F(Outputs, PoliciesThatDropNothingAreNamed) {
  const auto errors_of = [&](const Arguments& more) {
    Arguments all = {"eval", "ppl", "-m", model_path(), "-t", "1", "-f", text_, "--window", "64", "--windows", "2"};
    all.insert(all.end(), more.begin(), more.end());
    const Finished done = run_program(all);
    EXPECT_EQ(done.exit_code, 0) << done.err;
    return done.err;
  };
  const std::string h2o = "h2o:budget=24,recent=8";
  EXPECT_NE(errors_of({"--kv", "full", "--kv", h2o}).find("'" + h2o + "' dropped nothing"), std::string::npos);
  EXPECT_EQ(errors_of({"--kv", "full", "--kv", h2o, "--chunk", "16"}), "");
  EXPECT_NE(errors_of({"--kv", "snapkv:budget=24,window=8", "--chunk", "16"}).find("when a prompt ends"),
            std::string::npos);
  // One layer of lethe keeps everything, others do not: it is not idle.
  const Finished uneven = run_program(
      {"inspect", "-m", model_path(), "-f", text_, "--tokens", "250", "--kv", "lethe:tau=20,start=32", "--json"});
  std::vector<std::size_t> kept;
  const Json found = Json::parse(uneven.out);
  for (const Json& layer : found["layers"]) kept.push_back(layer["final"].size());
  EXPECT_EQ(std::ranges::max(kept), 250u);
  EXPECT_LT(std::ranges::min(kept), 200u);
  EXPECT_EQ(uneven.err, "");
  const Finished inspected =
      run_program({"inspect", "-m", model_path(), "-f", text_, "--tokens", "64", "--kv", "snapkv:budget=40"});
  EXPECT_NE(inspected.err.find("dropped nothing"), std::string::npos) << inspected.err;
}

TEST_F(Outputs, NumbersThatAreNone) {
  expect_refused({"run", "-m", model_path(), "-p", "Hi", "--temp", ""}, 2,
                 "--temp: '' is not a number (0 to 100) (see 'kvasir run --help')");
  expect_refused({"plan", "-m", model_path(), "--kv", "h2o:budget=4000"}, 2,
                 "policy 'h2o:budget=4000,recent=2000' shows a pass up to 4256 tokens (what it keeps and a chunk of "
                 "256), more than the trained context of 2048; give it a smaller size (budget, size, max) or a smaller "
                 "chunk [--kv, --chunk]");
  EXPECT_EQ(run_program({"--version"}, {.output_file = "/dev/full"}).exit_code, 1);
}

}  // namespace
}  // namespace kvasir::test
