; The threads that run the parallel loops of a library; tvmtune/library/thread_pool.py fills in what
; stands between @.
;
; Kernels call __TVMBackendParallelLaunch(function, data, parts), a pointer that TVM's runtime would set
; to its own pool. Here it is hidden from the runtime and points to @launch. TVM's caller waits for
; threads that have not begun, which on a busy machine costs a time slice of the scheduler for each
; kernel. This caller takes back each part that no thread has begun, so it waits only for threads that
; compute. Threads that wait sleep after 20 ms, and end when the library is unloaded or the process ends.
;
; Thread i runs part i, so what one kernel leaves in a core's caches serves the next. Its slot is
;   0 nothing to do   1 a part is offered   2 asleep   3 the thread should end
; Whoever changes a slot from 1 to 0, thread or caller, runs the part; nobody else changes it from 1.
; A slot is a futex.

%Slot = type { i32, [31 x i32] }      ; 128 bytes: two cache lines, which CPUs fetch in pairs
%Group = type { ptr, i32 }            ; TVMParallelGroupEnv: barriers, which no kernel uses; number of parts
%Time = type { i64, i64 }             ; timespec: seconds, nanoseconds
%Any = type { i32, i32, i64 }         ; TVMFFIAny: type, padding, value

@__TVMBackendParallelLaunch = hidden global ptr @launch

@tuned = internal constant i32 @THREADS@
@size = internal global i32 0         ; threads to use, the caller included; 0: not chosen yet
@started = internal global i32 0      ; threads that exist, the caller not included
@refused = internal global i32 0      ; 1 after the system has refused a thread: it is not asked again
@process = internal global i32 0      ; that started them: a fork has none of them
@busy = internal global i32 0         ; 1 while a caller uses the threads; other callers compute alone
@ending = internal global i32 0       ; 1 once the threads should end: callers then compute alone

@slots = internal global [@LIMIT@ x %Slot] zeroinitializer, align 128
@handles = internal global [@LIMIT@ x i64] zeroinitializer
@function = internal global ptr null
@data = internal global ptr null
@group = internal global %Group zeroinitializer
@remaining = internal global i32 0, align 128  ; offered parts that are not finished; a futex
@waiting = internal global i32 0      ; 1 while the caller may sleep on @remaining
@failed = internal global i32 0       ; 1 after a part failed in a thread, 2 in the caller

@names = internal constant [2 x ptr] [ptr @name0, ptr @name1]
@name0 = internal constant [16 x i8] c"TVM_NUM_THREADS\00"
@name1 = internal constant [16 x i8] c"OMP_NUM_THREADS\00"
@kind = internal constant [13 x i8] c"RuntimeError\00"
@message = internal constant [34 x i8] c"a kernel failed in another thread\00"
@type_kind = internal constant [10 x i8] c"TypeError\00"
@type_message = internal constant [41 x i8] c"the number of threads must be an integer\00"

declare i64 @syscall(i64, ...)
declare i32 @sched_yield()
declare i32 @clock_gettime(i32, ptr)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(i64, ptr)
declare i32 @getpid()
declare ptr @getenv(ptr)
declare i32 @atoi(ptr)
declare i32 @sched_getaffinity(i32, i64, ptr)
declare void @TVMFFIErrorSetRaisedFromCStr(ptr, ptr)
declare i64 @llvm.ctpop.i64(i64)
declare i32 @llvm.smin.i32(i32, i32)
declare i32 @llvm.smax.i32(i32, i32)

; Nanoseconds of the monotonic clock.
define internal i64 @now() {
  %time = alloca %Time
  call i32 @clock_gettime(i32 1, ptr %time)
  %seconds = load i64, ptr %time
  %place = getelementptr %Time, ptr %time, i32 0, i32 1
  %rest = load i64, ptr %place
  %whole = mul i64 %seconds, 1000000000
  %sum = add i64 %whole, %rest
  ret i64 %sum
}

; Spin until the word is zero (until = 1) or is not (until = 0), for some nanoseconds at most.
; Returns whether it is so. Yields now and then: what is waited for may need this very CPU.
define internal i1 @spin(ptr %word, i1 %until, i64 %limit) {
entry:
  %start = call i64 @now()
  br label %again
again:
  %turn = phi i32 [ 0, %entry ], [ %next, %pause ], [ 1, %clock ]
  %value = load atomic i32, ptr %word seq_cst, align 4
  %zero = icmp eq i32 %value, 0
  %reached = icmp eq i1 %zero, %until
  br i1 %reached, label %yes, label %more
more:
  %next = add i32 %turn, 1
  %round = and i32 %turn, 63
  %due = icmp eq i32 %round, 63
  br i1 %due, label %clock, label %pause
pause:
  call void asm sideeffect "pause", "~{memory}"()
  br label %again
clock:
  call i32 @sched_yield()
  %time = call i64 @now()
  %passed = sub i64 %time, %start
  %late = icmp ugt i64 %passed, %limit
  br i1 %late, label %no, label %again
yes:
  ret i1 true
no:
  ret i1 false
}

; Sleep while the word has this value. (202 is futex on x86-64.)
define internal void @sleep(ptr %word, i32 %value) {
  call i64 (i64, ...) @syscall(i64 202, ptr %word, i32 128, i32 %value, ptr null, ptr null, i32 0)
  ret void
}

; Wake who sleeps on the word.
define internal void @wake(ptr %word) {
  call i64 (i64, ...) @syscall(i64 202, ptr %word, i32 129, i32 1, ptr null, ptr null, i32 0)
  ret void
}

; Take the part that is offered in a slot. Returns whether there was one.
define internal i1 @take(ptr %slot) {
  %swap = cmpxchg ptr %slot, i32 1, i32 0 seq_cst seq_cst
  %taken = extractvalue { i32, i1 } %swap, 1
  ret i1 %taken
}

; Compute a part. If it fails, @failed becomes %mark.
define internal void @compute(i32 %part, i32 %mark) {
entry:
  %function = load ptr, ptr @function
  %data = load ptr, ptr @data
  %status = call i32 %function(i32 %part, ptr @group, ptr %data)
  %good = icmp eq i32 %status, 0
  br i1 %good, label %done, label %bad
bad:
  store atomic i32 %mark, ptr @failed seq_cst, align 4
  br label %done
done:
  ret void
}

; A thread of the pool. Its argument is the number of its part.
define internal ptr @work(ptr %argument) {
entry:
  %wide = ptrtoint ptr %argument to i64
  %part = trunc i64 %wide to i32
  %slot = getelementptr [@LIMIT@ x %Slot], ptr @slots, i64 0, i64 %wide
  br label %wait
wait:
  %over = load atomic i32, ptr @ending seq_cst, align 4
  %must_end = icmp ne i32 %over, 0
  br i1 %must_end, label %end, label %idle
idle:
  %offered = call i1 @spin(ptr %slot, i1 false, i64 20000000)  ; 20 ms
  br i1 %offered, label %look, label %tired
tired:
  %swap = cmpxchg ptr %slot, i32 0, i32 2 seq_cst seq_cst
  %nothing = extractvalue { i32, i1 } %swap, 1
  br i1 %nothing, label %check, label %look
check:                                ; again: @stop may have come before the slot was 2
  %late_over = load atomic i32, ptr @ending seq_cst, align 4
  %late_end = icmp ne i32 %late_over, 0
  br i1 %late_end, label %end, label %asleep
asleep:
  call void @sleep(ptr %slot, i32 2)
  %seen = load atomic i32, ptr %slot seq_cst, align 4
  %still = icmp eq i32 %seen, 2
  br i1 %still, label %asleep, label %look
look:
  %state = load atomic i32, ptr %slot seq_cst, align 4
  %ends = icmp eq i32 %state, 3
  br i1 %ends, label %end, label %try
try:
  %taken = call i1 @take(ptr %slot)
  br i1 %taken, label %run, label %wait
run:
  call void @compute(i32 %part, i32 1)
  %before = atomicrmw sub ptr @remaining, i32 1 seq_cst
  %last = icmp eq i32 %before, 1
  br i1 %last, label %report, label %wait
report:
  %sleeps = load atomic i32, ptr @waiting seq_cst, align 4
  %needed = icmp ne i32 %sleeps, 0
  br i1 %needed, label %rouse, label %wait
rouse:
  call void @wake(ptr @remaining)
  br label %wait
end:
  ret ptr null
}

; The number of threads to use. It is chosen once: by the environment, or else as many as the library was
; tuned for, if the process may use as many CPUs.
define internal i32 @threads() {
entry:
  %mask = alloca [16 x i64]
  %set = load atomic i32, ptr @size seq_cst, align 4
  %known = icmp sgt i32 %set, 0
  br i1 %known, label %done, label %name
name:
  %k = phi i64 [ 0, %entry ], [ %k1, %unset ]
  %place = getelementptr [2 x ptr], ptr @names, i64 0, i64 %k
  %variable = load ptr, ptr %place
  %text = call ptr @getenv(ptr %variable)
  %none = icmp eq ptr %text, null
  br i1 %none, label %unset, label %parse
parse:
  %number = call i32 @atoi(ptr %text)
  %positive = icmp sgt i32 %number, 0
  br i1 %positive, label %keep, label %unset
unset:
  %k1 = add i64 %k, 1
  %over = icmp eq i64 %k1, 2
  br i1 %over, label %ask, label %name
ask:
  %tuned = load i32, ptr @tuned
  %status = call i32 @sched_getaffinity(i32 0, i64 128, ptr %mask)
  %failed = icmp ne i32 %status, 0
  br i1 %failed, label %keep, label %count
count:
  %i = phi i64 [ 0, %ask ], [ %i1, %count ]
  %sum = phi i64 [ 0, %ask ], [ %sum1, %count ]
  %at = getelementptr [16 x i64], ptr %mask, i64 0, i64 %i
  %bits = load i64, ptr %at
  %ones = call i64 @llvm.ctpop.i64(i64 %bits)
  %sum1 = add i64 %sum, %ones
  %i1 = add i64 %i, 1
  %all = icmp eq i64 %i1, 16
  br i1 %all, label %limit, label %count
limit:
  %cpus = trunc i64 %sum1 to i32
  %least = call i32 @llvm.smin.i32(i32 %tuned, i32 %cpus)
  br label %keep
keep:
  %wanted = phi i32 [ %number, %parse ], [ %tuned, %ask ], [ %least, %limit ]
  %some = call i32 @llvm.smax.i32(i32 %wanted, i32 1)
  %chosen = call i32 @llvm.smin.i32(i32 %some, i32 @LIMIT@)
  store atomic i32 %chosen, ptr @size seq_cst, align 4
  br label %done
done:
  %result = phi i32 [ %set, %entry ], [ %chosen, %keep ]
  ret i32 %result
}

; Start threads until there are as many; fewer if the system refuses. A fork starts with none.
define internal void @start(i32 %wanted) {
entry:
  %current = call i32 @getpid()
  %process = load i32, ptr @process
  %same = icmp eq i32 %process, %current
  %known = load i32, ptr @started
  %first = select i1 %same, i32 %known, i32 0
  store i32 %first, ptr @started
  store i32 %current, ptr @process
  br label %check
check:
  %have = phi i32 [ %first, %entry ], [ %index, %started ]
  %enough = icmp sge i32 %have, %wanted
  br i1 %enough, label %done, label %create
create:
  %index = add i32 %have, 1
  %wide = sext i32 %index to i64
  %slot = getelementptr [@LIMIT@ x %Slot], ptr @slots, i64 0, i64 %wide
  store atomic i32 0, ptr %slot seq_cst, align 4
  %handle = getelementptr [@LIMIT@ x i64], ptr @handles, i64 0, i64 %wide
  %argument = inttoptr i64 %wide to ptr
  %status = call i32 @pthread_create(ptr %handle, ptr null, ptr @work, ptr %argument)
  %refused = icmp ne i32 %status, 0
  br i1 %refused, label %give_up, label %started
give_up:
  store i32 1, ptr @refused
  br label %done
started:
  store i32 %index, ptr @started
  br label %check
done:
  ret void
}

; Compute all parts in the calling thread.
define internal i32 @alone(ptr %function, ptr %data, i32 %parts) {
entry:
  %group = alloca %Group
  %given = icmp sgt i32 %parts, 0
  %number = select i1 %given, i32 %parts, i32 1
  store %Group zeroinitializer, ptr %group
  %place = getelementptr %Group, ptr %group, i32 0, i32 1
  store i32 %number, ptr %place
  br label %loop
loop:
  %part = phi i32 [ 0, %entry ], [ %next, %again ]
  %status = call i32 %function(i32 %part, ptr %group, ptr %data)
  %bad = icmp ne i32 %status, 0
  br i1 %bad, label %done, label %again
again:
  %next = add i32 %part, 1
  %all = icmp sge i32 %next, %number
  br i1 %all, label %done, label %loop
done:
  ret i32 %status
}

; Run function(part, group, data) for each part; as many parts as threads if the number is 0.
define internal i32 @launch(ptr %function, ptr %data, i32 %parts) {
entry:
  %threads = call i32 @threads()
  %given = icmp sgt i32 %parts, 0
  %number = select i1 %given, i32 %parts, i32 %threads
  %single = icmp sle i32 %threads, 1
  %one = icmp sle i32 %number, 1
  %few = or i1 %single, %one
  %over = load atomic i32, ptr @ending seq_cst, align 4
  %ends = icmp ne i32 %over, 0
  %no_threads = or i1 %few, %ends
  br i1 %no_threads, label %solo, label %lock
lock:
  %swap = cmpxchg ptr @busy, i32 0, i32 1 seq_cst seq_cst
  %free = extractvalue { i32, i1 } %swap, 1
  br i1 %free, label %prepare, label %solo
solo:
  %solo_status = call i32 @alone(ptr %function, ptr %data, i32 %parts)
  ret i32 %solo_status
prepare:
  %less = call i32 @llvm.smin.i32(i32 %number, i32 %threads)
  %others = sub i32 %less, 1
  %have = load i32, ptr @started
  %fewer = icmp slt i32 %have, %others
  %refused = load i32, ptr @refused
  %allowed = icmp eq i32 %refused, 0
  %lacking = and i1 %fewer, %allowed
  br i1 %lacking, label %grow, label %publish
grow:
  call void @start(i32 %others)
  br label %publish
publish:
  %there = load i32, ptr @started
  %offers = call i32 @llvm.smin.i32(i32 %there, i32 %others)
  store ptr %function, ptr @function
  store ptr %data, ptr @data
  %parts_place = getelementptr %Group, ptr @group, i32 0, i32 1
  store i32 %number, ptr %parts_place
  store atomic i32 0, ptr @failed seq_cst, align 4
  store atomic i32 %offers, ptr @remaining seq_cst, align 4
  br label %offer_check
offer_check:
  %i = phi i32 [ 1, %publish ], [ %i1, %offer ], [ %i1, %alarm ]
  %offering = icmp sle i32 %i, %offers
  br i1 %offering, label %offer, label %own
offer:
  %i1 = add i32 %i, 1
  %wide = sext i32 %i to i64
  %slot = getelementptr [@LIMIT@ x %Slot], ptr @slots, i64 0, i64 %wide
  %state = atomicrmw xchg ptr %slot, i32 1 seq_cst
  %asleep = icmp eq i32 %state, 2
  br i1 %asleep, label %alarm, label %offer_check
alarm:
  call void @wake(ptr %slot)
  br label %offer_check

; Parts of the caller: the first, and those for which there are no threads.
own:
  call void @compute(i32 0, i32 2)
  %first_rest = add i32 %offers, 1
  br label %rest_check
rest_check:
  %r = phi i32 [ %first_rest, %own ], [ %r1, %rest ]
  %resting = icmp slt i32 %r, %number
  br i1 %resting, label %rest, label %steal_check
rest:
  call void @compute(i32 %r, i32 2)
  %r1 = add i32 %r, 1
  br label %rest_check

; Parts that nobody has begun.
steal_check:
  %s = phi i32 [ 1, %rest_check ], [ %s1, %steal ], [ %s1, %stolen ]
  %count = phi i32 [ 0, %rest_check ], [ %count, %steal ], [ %count1, %stolen ]
  %stealing = icmp sle i32 %s, %offers
  br i1 %stealing, label %steal, label %await
steal:
  %s1 = add i32 %s, 1
  %s_wide = sext i32 %s to i64
  %s_slot = getelementptr [@LIMIT@ x %Slot], ptr @slots, i64 0, i64 %s_wide
  %mine = call i1 @take(ptr %s_slot)
  br i1 %mine, label %stolen, label %steal_check
stolen:
  call void @compute(i32 %s, i32 2)
  atomicrmw sub ptr @remaining, i32 1 seq_cst
  %count1 = add i32 %count, 1
  br label %steal_check

await:
  %quick = call i1 @spin(ptr @remaining, i1 true, i64 200000)  ; 0.2 ms
  br i1 %quick, label %finish, label %rest_awhile
rest_awhile:
  store atomic i32 1, ptr @waiting seq_cst, align 4
  br label %still
still:
  %left = load atomic i32, ptr @remaining seq_cst, align 4
  %finished = icmp eq i32 %left, 0
  br i1 %finished, label %rested, label %slumber
slumber:
  call void @sleep(ptr @remaining, i32 %left)
  br label %still
rested:
  store atomic i32 0, ptr @waiting seq_cst, align 4
  br label %finish

; If no thread took a part, this may be a fork, in which none exists.
finish:
  %failure = load atomic i32, ptr @failed seq_cst, align 4
  %none_took = icmp eq i32 %count, %offers
  br i1 %none_took, label %ask, label %unlock
ask:
  %process = load i32, ptr @process
  %current = call i32 @getpid()
  %same = icmp eq i32 %process, %current
  br i1 %same, label %unlock, label %forked
forked:
  store i32 0, ptr @started
  br label %unlock
unlock:
  store atomic i32 0, ptr @busy seq_cst, align 4
  switch i32 %failure, label %raised [ i32 0, label %success
                                       i32 1, label %raise ]
success:
  ret i32 0
raise:
  call void @TVMFFIErrorSetRaisedFromCStr(ptr @kind, ptr @message)
  br label %raised
raised:
  ret i32 -1
}

; End the threads before their code is unloaded, or the process ends.
define internal void @stop() {
entry:
  %started = load i32, ptr @started
  %process = load i32, ptr @process
  %current = call i32 @getpid()
  %same = icmp eq i32 %process, %current
  %some = icmp sgt i32 %started, 0
  %theirs = and i1 %same, %some
  br i1 %theirs, label %tell, label %done
tell:
  store atomic i32 1, ptr @ending seq_cst, align 4
  br label %mark
mark:
  %i = phi i64 [ 1, %tell ], [ %i1, %marked ]
  %slot = getelementptr [@LIMIT@ x %Slot], ptr @slots, i64 0, i64 %i
  %idle = cmpxchg ptr %slot, i32 0, i32 3 seq_cst seq_cst
  %was_idle = extractvalue { i32, i1 } %idle, 1
  br i1 %was_idle, label %marked, label %mark_asleep
mark_asleep:
  %asleep = cmpxchg ptr %slot, i32 2, i32 3 seq_cst seq_cst
  %was_asleep = extractvalue { i32, i1 } %asleep, 1
  br i1 %was_asleep, label %rouse, label %marked
rouse:
  call void @wake(ptr %slot)
  br label %marked
marked:
  %i1 = add i64 %i, 1
  %n = sext i32 %started to i64
  %more = icmp sle i64 %i1, %n
  br i1 %more, label %mark, label %join
join:
  %j = phi i64 [ 1, %marked ], [ %j1, %join ]
  %place = getelementptr [@LIMIT@ x i64], ptr @handles, i64 0, i64 %j
  %handle = load i64, ptr %place
  call i32 @pthread_join(i64 %handle, ptr null)
  %j1 = add i64 %j, 1
  %waiting = icmp sle i64 %j1, %n
  br i1 %waiting, label %join, label %ended
ended:
  store i32 0, ptr @started
  br label %done
done:
  ret void
}

@llvm.global_dtors = appending global [1 x { i32, ptr, ptr }]
  [{ i32, ptr, ptr } { i32 65535, ptr @stop, ptr null }]

; tvmtune_threads(n) in tvm-ffi's calling convention: use n threads from now on, if n is positive.
; Returns how many are used.
define i32 @__tvm_ffi_@SETTER@(ptr %self, ptr %arguments, i32 %count, ptr %result) {
entry:
  %one = icmp eq i32 %count, 1
  br i1 %one, label %typed, label %wrong
typed:
  %type = load i32, ptr %arguments
  %integer = icmp eq i32 %type, 1
  br i1 %integer, label %read, label %wrong
wrong:
  call void @TVMFFIErrorSetRaisedFromCStr(ptr @type_kind, ptr @type_message)
  ret i32 -1
read:
  %place = getelementptr %Any, ptr %arguments, i64 0, i32 2
  %wanted = load i64, ptr %place
  %positive = icmp sgt i64 %wanted, 0
  br i1 %positive, label %set, label %get
set:
  %small = icmp slt i64 %wanted, @LIMIT@
  %limited = select i1 %small, i64 %wanted, i64 @LIMIT@
  %number = trunc i64 %limited to i32
  store atomic i32 %number, ptr @size seq_cst, align 4
  store i32 0, ptr @refused
  br label %get
get:
  %used = call i32 @threads()
  %wide = sext i32 %used to i64
  store %Any { i32 1, i32 0, i64 0 }, ptr %result
  %value = getelementptr %Any, ptr %result, i64 0, i32 2
  store i64 %wide, ptr %value
  ret i32 0
}
