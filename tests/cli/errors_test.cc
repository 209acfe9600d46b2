// Failures that do not depend on the command line: a full disk, a closed pipe, signals; and files that are not models,
// for every command.
#include "cli/errors.h"

namespace kvasir::test {
namespace {

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
    expect_refused(done, 1, "cannot write to standard output: No space left on device");
    // A failure to write to standard error is ignored.
    EXPECT_EQ(run_program(arguments, {.error_file = "/dev/full"}).exit_code, 0);
  }
  // The message is lost; the exit code remains.
  EXPECT_EQ(run_model({"-p", "Once", "--isa", "none"}, {.error_file = "/dev/full"}).exit_code, 2);
  const Finished cut = run_model({"-p", "Once", "--ignore-eos", "-n", "-1"}, {.most_output = 10});
  EXPECT_EQ(cut.exit_code, 1) << "signal " << cut.signal;
  EXPECT_FALSE(cut.timed_out);
  EXPECT_EQ(cut.err, "");
}

// A wrong path is a wrong input (exit code 2), for every command; a damaged file is described by its first defect.
TEST_F(Errors, NoModelFile) {
  for (const auto& [path, message] : std::vector<std::pair<std::string, std::string>>{
           {folder(), no_model_in(folder())},
           {"/dev/null", "'/dev/null' is not a regular file"},
           {file("missing"), "cannot open '" + file("missing") + "': No such file or directory"},
           {file("text/below"), "cannot open '" + file("text/below") + "': Not a directory"}})
    expect_all_refused({{{"run", "-m", path, "-p", "x"}, 2, message},
                        {{"info", path}, 2, message},
                        {{"plan", "-m", path}, 2, message},
                        {{"bench", "-m", path}, 2, message},
                        {{"tokenize", "-m", path, "-p", "x"}, 2, message}});
  std::filesystem::copy_file(model_path(), file("cut"));
  std::filesystem::resize_file(file("cut"), std::filesystem::file_size(model_path()) - 100000);
  expect_refused({"info", file("cut")}, 2,
                 "'" + file("cut") +
                     "': the file is truncated: tensor 'blk.5.ffn_up.weight' ends at byte 3526176, but the file has "
                     "3426176; download it again");
  // A plan needs the header alone, and says what a run would.
  const Finished planned = run_program({"plan", "-m", file("cut")});
  EXPECT_EQ(planned.exit_code, 0) << planned.err;
  EXPECT_NE(planned.out.find("\nrun will refuse this: '" + file("cut") + "': the file is truncated"), std::string::npos)
      << planned.out;
}

TEST_F(Errors, SignalsEndWhatPollsNoneAtOnce) {
  for (const Arguments& arguments : std::vector<Arguments>{
           run_arguments({}), {"tokenize", "-m", model_path()}, {"eval", "ppl", "-m", model_path(), "-f", "-"}})
    for (const int signal : {SIGINT, SIGTERM}) {
      SCOPED_TRACE(::testing::PrintToString(arguments));
      const Finished done = run_program(arguments, {.input = "Once upon a time",
                                                    .input_stays_open = true,
                                                    .interrupt = Interrupt::kStart,
                                                    .interrupt_after = 0.5,
                                                    .signal = signal});
      EXPECT_FALSE(done.timed_out);
      EXPECT_EQ(done.signal, signal) << done.exit_code << " " << done.err;
      EXPECT_LT(done.after_signal, kSoon);
      EXPECT_EQ(done.out + done.err, "");
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
           {"bench", "-m", model_path(), "-t", "1", "--repeat", "1000", "--decode", "2000"},
           {"demo", "-m", model_path(), "-t", "1", "-f", file("long"), "--kv", "window:size=64"}})
    for (const int signal : {SIGINT, SIGTERM}) {
      SCOPED_TRACE(::testing::PrintToString(arguments));
      const Finished done =
          run_program(arguments, {.interrupt = Interrupt::kCaught, .interrupt_after = 0.5, .signal = signal});
      // A shell's loop around it ends too.
      EXPECT_EQ(done.signal, signal == SIGINT ? SIGINT : 0) << "exit code " << done.exit_code;
      EXPECT_EQ(done.exit_code, signal == SIGINT ? -1 : 1) << "signal " << done.signal;
      EXPECT_LT(done.after_signal, kSoon);
      // On a busy machine a line of progress may come before.
      const std::size_t last = done.err.find("kvasir: stopped\n");
      EXPECT_EQ(done.err.substr(std::min(last, done.err.size())), "kvasir: stopped\n") << done.err;
      EXPECT_TRUE(last == 0 || done.err.starts_with("kvasir: measuring: ")) << done.err;
    }
}

TEST_F(Errors, InterruptedRunEndsSoonAndSaysSo) {
  const Finished done =
      run_model({"-p", "Once", "--ignore-eos"}, {.interrupt = Interrupt::kFirstOutput, .interrupt_after = 0.2});
  EXPECT_EQ(done.signal, SIGINT) << "exit code " << done.exit_code;  // so that a shell's loop around it ends
  EXPECT_LT(done.after_signal, kSoon);
  EXPECT_NE(done.err.find("ended by cancelled"), std::string::npos) << done.err;
  EXPECT_NE(done.err.find("tokens seen"), std::string::npos) << done.err;

  const Finished json = run_model({"-p", "Once", "--ignore-eos", "--json", "-n", "-1"},
                                  {.interrupt = Interrupt::kCaught, .interrupt_after = 0.5});
  EXPECT_EQ(json.signal, SIGINT) << "exit code " << json.exit_code;
  EXPECT_LT(json.after_signal, kSoon);
  EXPECT_EQ(Json::parse(json.out, nullptr, false)["finish_reason"], "cancelled") << json.out;

  // While the text is read.
  const Finished reading =
      run_model({"--isa", "generic", "--chunk", "8"},
                {.input = some_text(200000), .interrupt = Interrupt::kCaught, .interrupt_after = 0.5});
  EXPECT_EQ(reading.signal, SIGINT) << "exit code " << reading.exit_code;
  EXPECT_LT(reading.after_signal, kSoon);
  EXPECT_EQ(reading.out, "");
  EXPECT_TRUE(reading.err.starts_with("kvasir: 200002 tokens to read; 2048 of 200002 are kept")) << reading.err;
  const std::string told = reading.err.substr(std::min(reading.err.find('\n') + 1, reading.err.size()));
  const std::string stopped = "kvasir: stopped while reading; <number> tokens seen, <number> kept, <number>";
  EXPECT_TRUE(matches(told, stopped + " B\n") || matches(told, stopped + ".<number> KiB\n") ||
              matches(told, stopped + ".<number> MiB\n"))
      << reading.err;
}

}  // namespace
}  // namespace kvasir::test
