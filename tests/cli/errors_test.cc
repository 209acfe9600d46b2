// Whatever is wrong: an exit code, one line that says so, and no crash.
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "cli/program.h"

namespace kvasir::test {
namespace {

void expect_one_line(const Finished& done) {
  EXPECT_TRUE(done.exit_code == 1 || done.exit_code == 2)
      << "exit code " << done.exit_code << ", signal " << done.signal;
  EXPECT_FALSE(done.timed_out);
  EXPECT_EQ(done.error_lines(), 1) << done.err;
  EXPECT_EQ(done.err.substr(0, 8), "kvasir: ") << done.err;
  EXPECT_GT(done.err.size(), 15u) << done.err;
  EXPECT_EQ(done.out, "");
}

class Errors : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) / ("kvasir-errors-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
    std::ofstream(file("empty"));
    std::ofstream(file("text")) << some_text(50);
    std::ofstream(file("binary")) << std::string("\xff\xfe\x00\x01", 4);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string file(const std::string& name) const { return (folder_ / name).string(); }

  std::filesystem::path folder_;
};

TEST_F(Errors, Run) {
  const std::string model = model_path();
  for (const Arguments& arguments : std::vector<Arguments>{
           {},
           {"frobnicate"},
           {"run"},
           {"run", "-m"},
           {"run", "-m", file("missing"), "-p", "x"},
           {"run", "-m", folder_.string(), "-p", "x"},
           {"run", "-m", file("empty"), "-p", "x"},
           {"run", "-m", file("text"), "-p", "x"},
           {"run", "-m", file("binary"), "-p", "x"},
           {"run", "-m", "/dev/null", "-p", "x"},
           {"run", "-m", "/dev/zero", "-p", "x"},
           {"run", "-m", model, "-m", model, "-p", "x"},
       }) {
    SCOPED_TRACE(::testing::PrintToString(arguments));
    expect_one_line(run_program(arguments));
  }
  for (const Arguments& more : std::vector<Arguments>{
           {"--frobnicate"},
           {"extra"},
           {"-p"},
           {"-p", "y"},
           {"-f", file("text")},
           {"-n", "-5"},
           {"-n", "abc"},
           {"-n", "1e3"},
           {"-n", "010"},
           {"-n", "99999999999999999999"},
           {"-n", ""},
           {"--chunk", "-1"},
           {"--chunk", "4097"},
           {"--chunk", "99999999999"},
           {"--page", "33"},
           {"--page", "0"},
           {"--page", "-32"},
           {"--temp", "-1"},
           {"--temp", "nan"},
           {"--temp", "inf"},
           {"--temp", "1e400"},
           {"--temp", "hot"},
           {"--top-p", "2"},
           {"--top-p", "0"},
           {"--top-p", "nan"},
           {"--min-p", "-0.1"},
           {"--min-p", "1.5"},
           {"--top-k", "-1"},
           {"--repeat-penalty", "0"},
           {"--repeat-penalty", "nan"},
           {"--frequency-penalty", "99"},
           {"--presence-penalty", "-99"},
           {"--penalty-window", "-1"},
           {"--seed", "-1"},
           {"--seed", "18446744073709551616"},
           {"--kv", ""},
           {"--kv", "nope"},
           {"--kv", "recompute"},
           {"--kv", "streaming:"},
           {"--kv", "streaming:sinks"},
           {"--kv", "streaming:sinks="},
           {"--kv", "streaming:sinks=1,sinks=2"},
           {"--kv", "streaming:foo=1"},
           {"--kv", "streaming:window=0"},
           {"--kv", "streaming:window=-1"},
           {"--kv", "streaming:window=99999999999999999999"},
           {"--kv", "streaming:window=1000000000000"},
           {"--kv", "window:size=1000000000000"},
           {"--kv", "streaming:sinks=1000000000000,every=1000000000000"},
           {"--kv", "streaming:cap=3"},
           {"--kv", "streaming:cap=100,window=50"},
           {"--kv", "streaming:realign=sideways"},
           {"--kv", "full:size=3"},
           {"--kv-type", "q4"},
           {"--kv-memory", "abc"},
           {"--kv-memory", "1"},
           {"--kv-memory", "-1"},
           {"--kv-memory", "-1MiB"},
           {"--kv-memory", "5 parsecs"},
           {"--kv-memory", "99999999TiB"},
           {"--isa", "sse9"},
           {"--isa", ""},
           {"--stop", ""},
       }) {
    SCOPED_TRACE(::testing::PrintToString(more));
    Arguments arguments = {"run", "-m", model, "-p", "x"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    expect_one_line(run_program(arguments));
  }
  for (const std::string threads : {"99999", "-1", "99999999999"}) {
    SCOPED_TRACE(threads);
    expect_one_line(run_program({"run", "-m", model, "-p", "x", "-t", threads}));
  }
}

TEST_F(Errors, Prompt) {
  for (const Arguments& more : std::vector<Arguments>{{"-p", "\xff\xfe"},
                                                      {"-p", "caf\xe9"},
                                                      {"-p", ""},
                                                      {},
                                                      {"-f", "-"},
                                                      {"-f", file("missing")},
                                                      {"-f", file("empty")},
                                                      {"-f", file("binary")},
                                                      {"-f", folder_.string()}}) {
    SCOPED_TRACE(::testing::PrintToString(more));
    expect_one_line(run_model(more));
  }
}

TEST_F(Errors, OtherCommands) {
  const std::string model = model_path();
  const std::string text = file("text");
  for (const Arguments& arguments : std::vector<Arguments>{
           {"info"},
           {"info", file("missing")},
           {"info", folder_.string()},
           {"info", file("empty")},
           {"info", text},
           {"info", model, "extra"},
           {"tokenize"},
           {"tokenize", "-m", text, "-p", "x"},
           {"tokenize", "-m", model, "-p", "\xff"},
           {"plan"},
           {"plan", "-m", text},
           {"plan", "-m", model, "--ctx", "-1"},
           {"plan", "-m", model, "--ctx", "99999999999999"},
           {"plan", "-m", model, "--ctx", "5", "--prompt", "9"},
           {"plan", "-m", model, "--prompt", "-7"},
           {"plan", "-m", model, "--batch", "0"},
           {"plan", "-m", model, "--chunk", "-1"},
           {"plan", "-m", model, "--page", "3"},
           {"plan", "-m", model, "--kv", ""},
           {"plan", "-m", model, "--kv", "nope"},
           {"plan", "-m", model, "--kv", "full", "--ctx", "99999999999"},
           {"plan", "-m", model, "--kv", "streaming:window=100000000000", "--ctx", "1000000000000"},
           {"plan", "-m", model, "--memory", "abc"},
           {"policies", "extra"},
           {"eval"},
           {"eval", "frobnicate"},
           {"eval", "ppl", "-m", model},
           {"eval", "ppl", "-m", model, "-f", file("missing")},
           {"eval", "ppl", "-m", model, "-f", text, "--tokens", "-1"},
           {"eval", "ppl", "-m", model, "-f", text, "--tokens", "999999"},
           {"eval", "ppl", "-m", model, "-f", text, "--windows", "3"},
           {"eval", "ppl", "-m", model, "-f", text, "--windows", "9223372036854775807", "--window", "9"},
           {"eval", "ppl", "-m", model, "-f", text, "--skip", "-5"},
           {"eval", "ppl", "-m", model, "-f", text, "--kv", "nope"},
           {"eval", "ppl", "-m", model, "-f", text, "--json", "--chunk", "-1"},
           {"eval", "ppl", "-m", model, "-f", text, "--json", "--window", "-3"},
           {"eval", "ppl", "-m", model, "-f", text, "--json", "--skip", "9999"},
           {"eval", "ppl", "-m", model, "-f", text, "--json", "--kv-memory", "1"},
           {"eval", "ppl", "-m", model, "-f", text, "--json", "--kv", "recompute:size=0"},
           {"eval", "ppl", "-m", model, "-f", text, "--skip", "5", "--window", "20"},
           {"eval", "ppl", "-m", model, "-f", text, "--score", "all"},
           {"eval", "ppl", "-m", model, "-f", text, "--score", "half", "--window", "20"},
           {"eval", "ppl", "-m", model, "-f", text, "--bins", "-1"},
           {"eval", "ppl", "-m", model, "-f", text, "--bins", "few"},
           {"eval", "ppl", "-m", model, "-f", text, "--bins", "10", "--window", "20"},
           {"eval", "ppl", "-m", model, "-f", text, "--compare-full", "--kv", "nope"},
           {"eval", "ppl", "-m", model, "-f", text, "--compare-full", "--kv-memory", "1"},
           {"eval", "ppl", "-m", model, "-f", text, "--report"},
           {"eval", "ppl", "-m", model, "-f", text, "--report", ""},
           {"eval", "ppl", "-m", model, "-f", text, "--report", folder_.string()},
           {"eval", "ppl", "-m", model, "-f", text, "-f", file("missing")},
           {"eval", "ppl", "-m", model, "-f", text, text},
           {"eval", "ppl", "-m", model, "-f", folder_.string()},  // no .txt in it
           {"eval", "ppl", "-m", model, "-f", "-", "-f", "-"},
           {"eval", "ppl", "-m", model, "-f", file("empty"), "--json"},
           {"eval", "ppl", "-m", model, "-f", file("binary"), "--json"},
           {"eval", "needle", "-m", model},
           {"eval", "needle", "-m", model, "-f", file("missing")},
           {"eval", "needle", "-m", model, "-f", text},  // too short
           {"eval", "needle", "-m", model, "-f", text, "--json"},
           {"eval", "needle", "-m", model, "-f", file("empty"), "--lengths", "60"},
           {"eval", "needle", "-m", model, "-f", file("binary"), "--lengths", "60"},
           {"eval", "needle", "-m", model, "-f", text, "--lengths", "20"},
           {"eval", "needle", "-m", model, "-f", text, "--lengths", ""},
           {"eval", "needle", "-m", model, "-f", text, "--lengths", "60,x"},
           {"eval", "needle", "-m", model, "-f", text, "--lengths", "-60"},
           {"eval", "needle", "-m", model, "-f", text, "--lengths", "99999999999999999999"},
           {"eval", "needle", "-m", model, "-f", text, "--lengths", "60", "--depths", "2"},
           {"eval", "needle", "-m", model, "-f", text, "--lengths", "60", "--depths", "nan"},
           {"eval", "needle", "-m", model, "-f", text, "--lengths", "60", "--depths", "0.5,deep"},
           {"eval", "needle", "-m", model, "-f", text, "--lengths", "60", "--trials", "0"},
           {"eval", "needle", "-m", model, "-f", text, "--lengths", "60", "--seed", "-1"},
           {"eval", "needle", "-m", model, "-f", text, "--lengths", "60", "--fact", "nothing"},
           {"eval", "needle", "-m", model, "-f", text, "--lengths", "60", "--ask", "{value}?"},
           {"eval", "needle", "-m", model, "-f", text, "--lengths", "60", "--chunk", "-1"},
           {"eval", "needle", "-m", model, "-f", text, "--lengths", "60", "--kv", "nope"},
           {"eval", "needle", "-m", model, "-f", text, "--lengths", "60", "--kv", "recompute"},
           {"eval", "needle", "-m", model, "-f", text, "--lengths", "60", "--kv-memory", "1"},
           {"eval", "restream", "-m", model},
           {"eval", "restream", "-m", model, "-f", file("missing")},
           {"eval", "restream", "-m", model, "-f", file("empty")},
           {"eval", "restream", "-m", model, "-f", text},  // too short
           {"eval", "restream", "-m", model, "-f", text, "--fill", "-1", "--distances", "5"},
           {"eval", "restream", "-m", model, "-f", text, "--fill", "9999", "--distances", "5"},
           {"eval", "restream", "-m", model, "-f", text, "--distances", ""},
           {"eval", "restream", "-m", model, "-f", text, "--distances", "1"},
           {"eval", "restream", "-m", model, "-f", text, "--distances", "-8"},
           {"eval", "restream", "-m", model, "-f", text, "--distances", "8,x"},
           {"eval", "restream", "-m", model, "-f", text, "--fill", "20", "--distances", "20"},
           {"eval", "restream", "-m", model, "-f", text, "--distances", "8", "--chunk", "5000"},
           {"eval", "restream", "-m", model, "-f", text, "--distances", "8", "--kv", "recompute"},
           {"eval", "restream", "-m", model, "-f", text, "--distances", "8", "--kv-memory", "1"},
           {"bench"},
           {"bench", "-m", model, "--prefill", "-1"},
           {"bench", "-m", model, "--prefill", "99999999"},
           {"bench", "-m", model, "--prefill", "0", "--decode", "0"},
           {"bench", "-m", model, "--repeat", "0"},
           {"bench", "-m", model, "--depth", "-1"},
           {"bench", "-m", model, "--depth", "1,x"},
           {"bench", "-m", model, "--kv", "nope"},
           {"bench", "-m", model, "--kv", "recompute"},
       }) {
    SCOPED_TRACE(::testing::PrintToString(arguments));
    expect_one_line(run_program(arguments));
  }
}

TEST_F(Errors, FullDiskAndClosedPipe) {
  for (const Arguments& arguments : std::vector<Arguments>{run_arguments({"-p", "Once", "-n", "20"}),
                                                           run_arguments({"-p", "Once", "-n", "20", "--json"}),
                                                           {"policies"},
                                                           {"info", model_path()},
                                                           {"tokenize", "-m", model_path(), "-p", "Once"},
                                                           {"plan", "-m", model_path(), "--json"},
                                                           {"--help"}}) {
    SCOPED_TRACE(::testing::PrintToString(arguments));
    const Finished done = run_program(arguments, {.output_file = "/dev/full"});
    EXPECT_EQ(done.exit_code, 1);
    expect_one_line(done);
    // What cannot be said on standard error is lost, and nothing else.
    EXPECT_EQ(run_program(arguments, {.error_file = "/dev/full"}).exit_code, 0);
  }
  EXPECT_EQ(run_model({"-p", "Once", "--isa", "none"}, {.error_file = "/dev/full"}).exit_code, 2);
  const Finished cut = run_model({"-p", "Once", "--ignore-eos"}, {.most_output = 10});
  EXPECT_EQ(cut.exit_code, 1) << "signal " << cut.signal;
  EXPECT_FALSE(cut.timed_out);
  EXPECT_EQ(cut.error_lines(), 1) << cut.err;
}

// What is wrong with the path is an input that is wrong; what is wrong with the file is told from its header on.
TEST_F(Errors, NoModelFile) {
  for (const std::string& path : {folder_.string(), std::string("/dev/null"), file("missing"), file("text/below")})
    for (const Arguments& arguments : std::vector<Arguments>{{"run", "-m", path, "-p", "x"},
                                                             {"info", path},
                                                             {"plan", "-m", path},
                                                             {"bench", "-m", path},
                                                             {"tokenize", "-m", path, "-p", "x"}}) {
      SCOPED_TRACE(::testing::PrintToString(arguments));
      const Finished done = run_program(arguments);
      expect_one_line(done);
      EXPECT_EQ(done.exit_code, 2);
    }
  std::filesystem::copy_file(model_path(), file("cut"));
  std::filesystem::resize_file(file("cut"), std::filesystem::file_size(model_path()) - 100000);
  const Finished cut = run_program({"info", file("cut")});
  expect_one_line(cut);
  EXPECT_EQ(cut.exit_code, 2);
  EXPECT_NE(cut.err.find("truncated"), std::string::npos) << cut.err;
}

TEST_F(Errors, SignalsEndWhatPollsNoneAtOnce) {
  for (const Arguments& arguments : std::vector<Arguments>{
           run_arguments({}), {"tokenize", "-m", model_path()}, {"eval", "ppl", "-m", model_path(), "-f", "-"}})
    for (const int signal : {SIGINT, SIGTERM}) {
      SCOPED_TRACE(::testing::PrintToString(arguments));
      const Finished done = run_program(arguments, {.input = "Once upon a time",
                                                    .input_stays_open = true,
                                                    .interrupt_after = 0.5,
                                                    .signal = signal,
                                                    .interrupt_silent = true,
                                                    .timeout = 20});
      EXPECT_FALSE(done.timed_out);
      EXPECT_EQ(done.signal, signal) << done.exit_code << " " << done.err;
      EXPECT_LT(done.seconds, 2);
    }
}

TEST_F(Errors, SignalsStopMeasurementsAfterThePass) {
  std::ofstream(file("long")) << some_text(100000);
  for (const Arguments& arguments : std::vector<Arguments>{
           {"eval", "ppl", "-m", model_path(), "-t", "1", "-f", file("long"), "--kv", "window:size=64"},
           {"eval", "ppl", "-m", model_path(), "-t", "1", "-f", file("long"), "-f", file("long"), "--kv",
            "window:size=64", "--compare-full", "--report", file("report.html")},
           {"eval", "needle", "-m", model_path(), "-t", "1", "-f", file("long"), "--trials", "1000"},
           {"eval", "restream", "-m", model_path(), "-t", "1", "-f", file("long"), "--kv", "window:size=64", "--chunk",
            "4"},
           {"bench", "-m", model_path(), "-t", "1", "--repeat", "1000", "--decode", "2000"}})
    for (const int signal : {SIGINT, SIGTERM}) {
      SCOPED_TRACE(::testing::PrintToString(arguments));
      const Finished done =
          run_program(arguments, {.interrupt_after = 1.5, .signal = signal, .interrupt_silent = true, .timeout = 60});
      EXPECT_EQ(done.exit_code, 1) << "signal " << done.signal;
      EXPECT_LT(done.seconds, 2);
      EXPECT_EQ(done.error_lines(), 1) << done.err;
    }
}

TEST_F(Errors, InterruptedRunEndsSoonAndSaysSo) {
  const Finished done = run_model({"-p", "Once", "--ignore-eos"}, {.interrupt_after = 0.2});
  EXPECT_EQ(done.exit_code, 1) << "signal " << done.signal;
  EXPECT_LT(done.seconds, 2);
  EXPECT_NE(done.err.find("ended by cancelled"), std::string::npos) << done.err;
  EXPECT_NE(done.err.find("tokens seen"), std::string::npos) << done.err;

  const Finished json =
      run_model({"-p", "Once", "--ignore-eos", "--json"}, {.interrupt_after = 1.5, .interrupt_silent = true});
  EXPECT_EQ(json.exit_code, 1) << "signal " << json.signal;
  EXPECT_LT(json.seconds, 2);
  EXPECT_EQ(Json::parse(json.out, nullptr, false)["finish_reason"], "cancelled") << json.out;

  // While the text is read.
  const Finished reading = run_model({"--isa", "generic", "--chunk", "8"},
                                     {.input = some_text(200000), .interrupt_after = 1, .interrupt_silent = true});
  EXPECT_EQ(reading.exit_code, 1) << "signal " << reading.signal;
  EXPECT_LT(reading.seconds, 2);
  EXPECT_EQ(reading.out, "");
  EXPECT_NE(reading.err.find("stopped while reading"), std::string::npos) << reading.err;
}

}  // namespace
}  // namespace kvasir::test
