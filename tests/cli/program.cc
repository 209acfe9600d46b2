#include "cli/program.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
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

// Whether the process has a handler for the signal.
bool catches(pid_t process, int signal) {
  std::ifstream status("/proc/" + std::to_string(process) + "/status");
  for (std::string field; status >> field;)
    if (std::string mask; field == "SigCgt:" && status >> mask)
      return (std::stoull(mask, nullptr, 16) >> (signal - 1) & 1) != 0;
  return false;
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

bool write_file(const std::string& path, std::uint64_t number) {
  std::ofstream file(path);
  file << number << '\n';
  return file.flush().good();
}

// Puts files of a control group in the place of the system's, for this process and those it executes.
bool replace_group(const Surroundings& surroundings) {
  const bool user = ::geteuid() != 0;
  if (::unshare(CLONE_NEWNS | (user ? CLONE_NEWUSER : 0)) != 0) return false;
  if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return false;
  std::string folder = "/sys/fs/cgroup";
  if (::mount("none", folder.c_str(), "tmpfs", 0, "mode=755") != 0) return false;
  if (surroundings.group_is_old && ::mkdir((folder += "/memory").c_str(), 0755) != 0) return false;
  const bool old = surroundings.group_is_old;
  return write_file(folder + (old ? "/memory.limit_in_bytes" : "/memory.max"), surroundings.group_limit) &&
         write_file(folder + (old ? "/memory.usage_in_bytes" : "/memory.current"), surroundings.group_used);
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
      return path.empty() ? fd : ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    };
    ::dup2(in.read, STDIN_FILENO);
    ::dup2(file_or(surroundings.output_file, out.write), STDOUT_FILENO);
    ::dup2(file_or(surroundings.error_file, err.write), STDERR_FILENO);
    if (surroundings.file_size_limit > 0) {
      const rlimit limit{surroundings.file_size_limit, surroundings.file_size_limit};
      ::setrlimit(RLIMIT_FSIZE, &limit);
      ::signal(SIGXFSZ, SIG_DFL);
    }
    if (surroundings.address_space_limit > 0) {
      const rlimit limit{surroundings.address_space_limit, surroundings.address_space_limit};
      ::setrlimit(RLIMIT_AS, &limit);
    }
    if (surroundings.group_limit > 0 && !replace_group(surroundings)) ::_exit(Surroundings::kNoNamespace);
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
  double interrupt_from = surroundings.interrupt == Interrupt::kStart ? start : 0;
  double signalled = 0;
  bool interrupted = surroundings.interrupt == Interrupt::kNever;
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
    if (!interrupted && interrupt_from == 0 &&
        (surroundings.interrupt == Interrupt::kCaught ? catches(child, surroundings.signal) : !result.out.empty()))
      interrupt_from = now();
    if (!interrupted && interrupt_from > 0 && now() - interrupt_from >= surroundings.interrupt_after) {
      interrupted = true;
      signalled = now();
      ::kill(child, surroundings.signal);
    }
    if (now() - start > surroundings.timeout) {
      result.timed_out = true;
      ::kill(child, SIGKILL);
      break;
    }
  }
  int status = 0;
  rusage usage{};
  ::wait4(child, &status, 0, &usage);
  if (signalled > 0) result.after_signal = now() - signalled;
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  result.cpu_seconds = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  result.peak_bytes = static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  for (int* fd : {&in.write, &out.read, &err.read}) close_end(*fd);
  ::sigaction(SIGPIPE, &before, nullptr);
  return result;
}

bool matches(std::string_view text, std::string_view expected) {
  constexpr std::string_view kNumber = "<number>";
  for (std::size_t at = expected.find(kNumber); at != std::string_view::npos; at = expected.find(kNumber)) {
    if (!text.starts_with(expected.substr(0, at))) return false;
    text.remove_prefix(at);
    const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
    if (digits == 0) return false;
    text.remove_prefix(digits);
    expected.remove_prefix(at + kNumber.size());
  }
  return text == expected;
}

void expect_refused(const Finished& done, int code, const std::string& message) {
  EXPECT_EQ(done.exit_code, code) << "signal " << done.signal;
  EXPECT_FALSE(done.timed_out);
  EXPECT_EQ(done.out, "");
  EXPECT_TRUE(matches(done.err, "kvasir: " + message + "\n")) << "it says: " << done.err << "and not: " << message;
}

void expect_refused(const Arguments& arguments, int code, const std::string& message) {
  SCOPED_TRACE(::testing::PrintToString(arguments));
  expect_refused(run_program(arguments), code, message);
}

void expect_all_refused(const std::vector<Refused>& cases, const Arguments& front) {
  for (const Refused& refused : cases) {
    Arguments arguments = front;
    arguments.insert(arguments.end(), refused.arguments.begin(), refused.arguments.end());
    expect_refused(arguments, refused.code, refused.message);
  }
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
