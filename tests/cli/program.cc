#include "cli/program.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "support/shared_data.h"

namespace kvasir::test {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Pipe {
  int read = -1;
  int write = -1;
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) std::abort();
    read = ends[0];
    write = ends[1];
  }
};

void close_end(int& fd) {
  if (fd >= 0) ::close(fd);
  fd = -1;
}

// Appends what is there; closes the end at its end.
void drain(int& fd, std::string& into) {
  char buffer[1 << 16];
  const ssize_t n = ::read(fd, buffer, sizeof buffer);
  if (n > 0) {
    into.append(buffer, static_cast<std::size_t>(n));
  } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
    close_end(fd);
  }
}

}  // namespace

int Finished::error_lines() const {
  if (!err.empty() && err.back() != '\n') return -1;
  return static_cast<int>(std::ranges::count(err, '\n'));
}

std::string binary_path() {
  const char* path = std::getenv("KVASIR_BINARY");
  return path != nullptr ? path : "kvasir";
}

std::string model_path() {
  return small_model();
}

Finished run_program(const Arguments& arguments, const Surroundings& surroundings) {
  const std::string binary = binary_path();
  std::vector<char*> argv{const_cast<char*>(binary.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);

  Pipe in, out, err;
  const pid_t child = ::fork();
  if (child == 0) {
    const auto file_or = [](const std::string& path, int fd) {
      return path.empty() ? fd : ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    };
    ::dup2(in.read, STDIN_FILENO);
    ::dup2(file_or(surroundings.output_file, out.write), STDOUT_FILENO);
    ::dup2(file_or(surroundings.error_file, err.write), STDERR_FILENO);
    if (surroundings.file_size_limit > 0) {
      const rlimit limit{surroundings.file_size_limit, surroundings.file_size_limit};
      ::setrlimit(RLIMIT_FSIZE, &limit);
      ::signal(SIGXFSZ, SIG_DFL);
    }
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  close_end(in.read);
  close_end(out.write);
  close_end(err.write);
  for (const int fd : {in.write, out.read, err.read}) ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  struct sigaction ignore {};
  struct sigaction before {};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignore, &before);

  Finished result;
  const double start = now();
  double interrupt_from = surroundings.interrupt_silent ? start : 0;
  bool interrupted = surroundings.interrupt_after == 0;
  std::size_t written = 0;
  while (out.read >= 0 || err.read >= 0) {
    const bool all_written = written == surroundings.input.size();
    if (in.write >= 0 && all_written && !surroundings.input_stays_open) close_end(in.write);
    pollfd watched[3] = {{out.read, POLLIN, 0}, {err.read, POLLIN, 0}, {all_written ? -1 : in.write, POLLOUT, 0}};
    ::poll(watched, 3, 20);
    if (watched[2].revents != 0) {
      const ssize_t n = ::write(in.write, surroundings.input.data() + written, surroundings.input.size() - written);
      if (n > 0) written += static_cast<std::size_t>(n);
      if (n < 0 && errno != EAGAIN) close_end(in.write);
    }
    if (watched[0].revents != 0) drain(out.read, result.out);
    if (watched[1].revents != 0) drain(err.read, result.err);
    if (surroundings.most_output > 0 && result.out.size() >= surroundings.most_output) close_end(out.read);
    if (interrupt_from == 0 && !result.out.empty()) interrupt_from = now();
    if (!interrupted && interrupt_from > 0 && now() - interrupt_from > surroundings.interrupt_after) {
      interrupted = true;
      interrupt_from = now();
      ::kill(child, surroundings.signal);
    }
    if (now() - start > surroundings.timeout) {
      result.timed_out = true;
      ::kill(child, SIGKILL);
      break;
    }
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  result.seconds = now() - (surroundings.interrupt_after > 0 ? interrupt_from : start);
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  for (int* fd : {&in.write, &out.read, &err.read}) close_end(*fd);
  ::sigaction(SIGPIPE, &before, nullptr);
  return result;
}

Arguments run_arguments(const Arguments& more) {
  Arguments arguments = {"run", "-m", model_path(), "-t", "1"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

Finished run_model(const Arguments& more, const Surroundings& surroundings) {
  return run_program(run_arguments(more), surroundings);
}

Json json_of(const Arguments& arguments, const Surroundings& surroundings) {
  const Finished done = run_program(arguments, surroundings);
  EXPECT_EQ(done.exit_code, 0) << "signal " << done.signal << ": " << done.err;
  Json json = Json::parse(done.out, nullptr, false);
  EXPECT_TRUE(json.is_object()) << done.out;
  return json;
}

Json run_json(const Arguments& more, const Surroundings& surroundings) {
  Arguments arguments = run_arguments(more);
  arguments.emplace_back("--json");
  return json_of(arguments, surroundings);
}

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::string some_text(int words) {
  static const char* const kWords[] = {"the", "old", "house", "by",   "a",     "river", "was", "full",
                                       "of",  "men", "and",   "said", "never", "there", "to",  "morning"};
  std::string text = "Once";
  std::uint32_t state = 7;
  for (int i = 0; i < words; ++i) {
    state = state * 1664525u + 1013904223u;
    text += std::string(" ") + kWords[state >> 28];
  }
  return text;
}

}  // namespace kvasir::test
