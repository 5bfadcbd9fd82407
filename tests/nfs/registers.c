/* Lets User Mode Linux run on processors with more state than it knows of (AMX).
 *
 * It keeps 2,696 bytes of a process's extended registers, and gives them back with PTRACE_SETREGSET. The kernel takes
 * nothing but the whole state, which is larger where there are AMX's tiles: the guest panics at its first process. Here
 * the rest of the state is put back as it is. Loaded with LD_PRELOAD.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/uio.h>

#define MOST (64 * 1024)

typedef long (*ptrace_type)(enum __ptrace_request, pid_t, void *, void *);

long ptrace(enum __ptrace_request request, ...)
{
	static ptrace_type real;
	static char state[MOST];
	struct iovec *given, whole = { state, MOST };
	void *address, *data;
	va_list rest;
	pid_t pid;

	va_start(rest, request);
	pid = va_arg(rest, pid_t);
	address = va_arg(rest, void *);
	data = va_arg(rest, void *);
	va_end(rest);
	if (!real)
		real = (ptrace_type)dlsym(RTLD_NEXT, "ptrace");
	if (request != PTRACE_SETREGSET || address != (void *)NT_X86_XSTATE)
		return real(request, pid, address, data);
	given = data;
	if (real(PTRACE_GETREGSET, pid, address, &whole) < 0)
		return -1;
	memcpy(state, given->iov_base, given->iov_len < whole.iov_len ? given->iov_len : whole.iov_len);
	return real(request, pid, address, &whole);
}
