// What a thread does while it waits: a moment's rest of its core's pipeline, or sleep until a word changes.
#pragma once
#include <stdint.h>

inline void rest() {
#ifdef __aarch64__
  __asm__ __volatile__("isb");  // `yield` does nothing on most cores
#else
  __builtin_ia32_pause();
#endif
}

#ifdef __linux__
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

// Sleeps while the word is `value`; may return early.
inline void sleep_while(uint32_t *word, uint32_t value) {
  syscall(SYS_futex, word, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, value, nullptr, nullptr, 0);
}

inline void wake_all(uint32_t *word) {
  syscall(SYS_futex, word, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, INT_MAX, nullptr, nullptr, 0);
}
#else
// macOS's own, which libc++ waits with, too. It has been compiled, never run.
extern "C" int __ulock_wait(uint32_t operation, void *word, uint64_t value, uint32_t timeout_us);
extern "C" int __ulock_wake(uint32_t operation, void *word, uint64_t value);
constexpr uint32_t COMPARE_AND_WAIT = 1, WAKE_ALL = 0x100;

inline void sleep_while(uint32_t *word, uint32_t value) { __ulock_wait(COMPARE_AND_WAIT, word, value, 0); }
inline void wake_all(uint32_t *word) { __ulock_wake(COMPARE_AND_WAIT | WAKE_ALL, word, 0); }
#endif
