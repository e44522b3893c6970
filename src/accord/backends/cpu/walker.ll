; The loop that walks the rows of a program, and the one that worker threads sit in.
;
; Memory that all threads share (a pool) has a header, one slot for each worker thread, and some teams. A run takes a
; free team and as many free workers as it may use; the team has a slot for the calling thread too. To start a phase, its
; tasks are cut into chunks, and each member's slot gets a description of the phase and a range of chunks: one word that
; holds a generation, the first chunk that is left, and the end. Members take chunks from the front of their own range,
; then from the back of the others', by compare-and-swap of that word (a simple form of Blumofe and Leiserson,
; "Scheduling Multithreaded Computations by Work Stealing", 1999). A member that is late, asleep, or not given a core
; costs nothing but its help: the others take its chunks.
;
; Why a thief that was held up for long does no harm: the word's generation changes with every phase, so a successful
; swap says that the slot's phase was open from when the word was read until then, and its description, read in between,
; is the right one. The ticket (phase number, team, number within the team) is compared too, with that in the thief's own
; slot, read in between as well: so the thief was a member of that very phase, and no other thread has its number. A
; phase ends when all its chunks are done, hence not before the thief's.
;
; A worker that finds nothing to do spins for some microseconds and then sleeps on a word of its slot (Linux futex). It
; first says so in that word and then looks for work once more; who gives work writes it first and looks at that word
; afterwards: with sequentially consistent accesses one of them sees the other. Sleepers are woken as a tree, each member
; waking two others.
;
; A system may put a worker that it wakes on the processor of the thread that wakes it, and leave it there: two threads
; on one core, the other idle, for the whole run. So workers are told to keep off the processor that their run's thread
; is on. That takes a system call only where this is another one than the last time.
;
; Names in braces are offsets in bytes (walker.py), and what differs between processors.

; time in nanoseconds
define internal i64 @now(ptr %pool) noinline nounwind {
  %time = alloca { i64, i64 }
  %clock.at = getelementptr i8, ptr %pool, i64 ${CLOCK}
  %clock = load ptr, ptr %clock.at
  %zero = call i32 %clock(i32 1, ptr %time)
  %seconds = load i64, ptr %time
  %nano.at = getelementptr i8, ptr %time, i64 8
  %nano = load i64, ptr %nano.at
  %scaled = mul i64 %seconds, 1000000000
  %r = add i64 %scaled, %nano
  ret i64 %r
}

; wake the thread of a slot if it sleeps
define internal void @wake(ptr %pool, ptr %slot) noinline nounwind {
entry:
  %word = getelementptr i8, ptr %slot, i64 ${SLEEPS}
  %sleeps = load atomic i32, ptr %word seq_cst, align 4
  %some = icmp ne i32 %sleeps, 0
  br i1 %some, label %call, label %out
call:
  %old = atomicrmw xchg ptr %word, i32 0 seq_cst
  %system.at = getelementptr i8, ptr %pool, i64 ${SYSCALL}
  %system = load ptr, ptr %system.at
  %r = call i64 (i64, ...) %system(i64 ${futex}, ptr %word, i64 129, i64 1)
  br label %out
out:
  ret void
}

; member %index wakes members 2 index + 1 and 2 index + 2
define internal void @wake_children(ptr %pool, ptr %team, i64 %index, i64 %members) alwaysinline nounwind {
entry:
  %twice = shl i64 %index, 1
  %a = add i64 %twice, 1
  %b = add i64 %twice, 2
  %has.a = icmp ult i64 %a, %members
  br i1 %has.a, label %first, label %out
first:
  %a.slot = call ptr @member(ptr %team, i64 %a)
  call void @wake(ptr %pool, ptr %a.slot)
  %has.b = icmp ult i64 %b, %members
  br i1 %has.b, label %second, label %out
second:
  %b.slot = call ptr @member(ptr %team, i64 %b)
  call void @wake(ptr %pool, ptr %b.slot)
  br label %out
out:
  ret void
}

define internal ptr @member(ptr %team, i64 %index) alwaysinline nounwind {
  %members = getelementptr i8, ptr %team, i64 ${MEMBER}
  %at = getelementptr ptr, ptr %members, i64 %index
  %slot = load atomic ptr, ptr %at monotonic, align 8
  ret ptr %slot
}

; do chunks of %slot's range, in the phase for which %mine holds %ticket, until there are none; returns their number
define internal i64 @work(ptr %slot, ptr %mine, i64 %ticket, i1 %back) noinline nounwind {
entry:
  %function.at = getelementptr i8, ptr %slot, i64 ${FUNCTION}
  %params.at = getelementptr i8, ptr %slot, i64 ${PARAMS}
  %operands.at = getelementptr i8, ptr %slot, i64 ${OPERANDS}
  %tasks.at = getelementptr i8, ptr %slot, i64 ${TASKS}
  %chunks.at = getelementptr i8, ptr %slot, i64 ${CHUNKS}
  %ticket.at = getelementptr i8, ptr %slot, i64 ${TICKET}
  %mine.at = getelementptr i8, ptr %mine, i64 ${TICKET}
  %thread = and i64 %ticket, 255
  %phase = lshr i64 %ticket, 8
  br label %again
again:
  %n = phi i64 [ 0, %entry ], [ %n, %claim ], [ %n.next, %run ]
  %state = load atomic i64, ptr %slot acquire, align 8
  %rest = lshr i64 %state, 16
  %next = and i64 %rest, 65535
  %end = and i64 %state, 65535
  %some = icmp ult i64 %next, %end
  br i1 %some, label %look, label %out
look:
  %function = load atomic ptr, ptr %function.at monotonic, align 8
  %params = load atomic ptr, ptr %params.at monotonic, align 8
  %operands = load atomic ptr, ptr %operands.at monotonic, align 8
  %tasks = load atomic i64, ptr %tasks.at monotonic, align 8
  %chunks = load atomic i64, ptr %chunks.at monotonic, align 8
  %its.ticket = load atomic i64, ptr %ticket.at monotonic, align 8
  %its.phase = lshr i64 %its.ticket, 8
  %same = icmp eq i64 %its.phase, %phase
  %my.ticket = load atomic i64, ptr %mine.at monotonic, align 8
  %still = icmp eq i64 %my.ticket, %ticket
  %allowed = and i1 %same, %still
  br i1 %allowed, label %claim, label %out
claim:
  %front = add i64 %state, 65536
  %rear = sub i64 %state, 1
  %after = select i1 %back, i64 %rear, i64 %front
  %pair = cmpxchg ptr %slot, i64 %state, i64 %after acq_rel acquire
  %taken = extractvalue { i64, i1 } %pair, 1
  br i1 %taken, label %run, label %again
run:
  %final = sub i64 %end, 1
  %chunk = select i1 %back, i64 %final, i64 %next
  %following = add i64 %chunk, 1
  %scaled.first = mul i64 %chunk, %tasks
  %scaled.last = mul i64 %following, %tasks
  %first = udiv i64 %scaled.first, %chunks
  %last = udiv i64 %scaled.last, %chunks
  call void %function(ptr %params, ptr %operands, i64 %first, i64 %last, i64 %thread)
  %n.next = add i64 %n, 1
  br label %again
out:
  ret i64 %n
}

; all that member %index of a phase does: its own range, then the others'
define internal i64 @take_part(ptr %team, ptr %mine, i64 %ticket, i64 %members) noinline nounwind {
entry:
  %own = call i64 @work(ptr %mine, ptr %mine, i64 %ticket, i1 false)
  %index = and i64 %ticket, 255
  br label %head
head:
  %k = phi i64 [ 1, %entry ], [ %k.next, %body ]
  %n = phi i64 [ %own, %entry ], [ %n.next, %body ]
  %more = icmp ult i64 %k, %members
  br i1 %more, label %body, label %out
body:
  %sum = add i64 %index, %k
  %wraps = icmp uge i64 %sum, %members
  %less = sub i64 %sum, %members
  %victim = select i1 %wraps, i64 %less, i64 %sum
  %slot = call ptr @member(ptr %team, i64 %victim)
  %stolen = call i64 @work(ptr %slot, ptr %mine, i64 %ticket, i1 true)
  %n.next = add i64 %n, %stolen
  %k.next = add i64 %k, 1
  br label %head
out:
  ret i64 %n
}

; a worker's thread; returns when the pool stops
define void @${worker}(ptr %pool, ptr %slot) nounwind {
entry:
  %stop.at = getelementptr i8, ptr %pool, i64 ${STOP}
  %spin.at = getelementptr i8, ptr %pool, i64 ${SPIN}
  %teams.at = getelementptr i8, ptr %pool, i64 ${TEAMS_AT}
  %word = getelementptr i8, ptr %slot, i64 ${SLEEPS}
  %ticket.at = getelementptr i8, ptr %slot, i64 ${TICKET}
  %members.at = getelementptr i8, ptr %slot, i64 ${MEMBERS}
  %system.at = getelementptr i8, ptr %pool, i64 ${SYSCALL}
  %spin = load i64, ptr %spin.at
  %teams = load i64, ptr %teams.at
  %system = load ptr, ptr %system.at
  %initial = load atomic i64, ptr %slot acquire, align 8
  %thread.at = getelementptr i8, ptr %slot, i64 ${THREAD}
  %thread = call i64 (i64, ...) %system(i64 ${gettid})
  store atomic i64 %thread, ptr %thread.at release, align 8
  br label %rest
rest:
  %seen = phi i64 [ %initial, %entry ], [ %seen, %awake ], [ %found, %finished ]
  %before = lshr i64 %seen, 32
  %start = call i64 @now(ptr %pool)
  %limit = add i64 %start, %spin
  br label %look
look:
  %k = phi i64 [ 0, %rest ], [ %k.next, %wait ], [ 0, %clock ]
  %state = load atomic i64, ptr %slot acquire, align 8
  %generation = lshr i64 %state, 32
  %changed = icmp ne i64 %generation, %before
  br i1 %changed, label %phase, label %wait
wait:
  call void ${pause}
  %k.next = add i64 %k, 1
  %tired = icmp ugt i64 %k.next, 32
  br i1 %tired, label %clock, label %look
clock:
  %time = call i64 @now(ptr %pool)
  %late = icmp sgt i64 %time, %limit
  br i1 %late, label %sleep, label %look
sleep:
  store atomic i32 1, ptr %word seq_cst, align 4
  %again = load atomic i64, ptr %slot seq_cst, align 8
  %again.generation = lshr i64 %again, 32
  %unchanged = icmp eq i64 %again.generation, %before
  %stop = load atomic i64, ptr %stop.at seq_cst, align 8
  %goes.on = icmp eq i64 %stop, 0
  %sleeps = and i1 %unchanged, %goes.on
  br i1 %sleeps, label %system.call, label %awake
system.call:
  %r = call i64 (i64, ...) %system(i64 ${futex}, ptr %word, i64 128, i64 1, ptr null)
  br label %awake
awake:
  store atomic i32 0, ptr %word seq_cst, align 4
  %stop.now = load atomic i64, ptr %stop.at seq_cst, align 8
  %ends = icmp ne i64 %stop.now, 0
  br i1 %ends, label %out, label %rest
phase:
  %found = phi i64 [ %state, %look ]
  %ticket = load atomic i64, ptr %ticket.at acquire, align 8
  %members = load atomic i64, ptr %members.at monotonic, align 8
  %upper = lshr i64 %ticket, 8
  %team.number = and i64 %upper, 255
  %team.offset = mul i64 %team.number, ${TEAM}
  %team.at = add i64 %teams, %team.offset
  %team = getelementptr i8, ptr %pool, i64 %team.at
  %index = and i64 %ticket, 255
  call void @wake_children(ptr %pool, ptr %team, i64 %index, i64 %members)
  %n = call i64 @take_part(ptr %team, ptr %slot, i64 %ticket, i64 %members)
  %useful = icmp ne i64 %n, 0
  br i1 %useful, label %report, label %finished
report:
  %done.at = getelementptr i8, ptr %team, i64 ${DONE}
  %old = atomicrmw add ptr %done.at, i64 %n seq_cst
  br label %finished
finished:
  br label %rest
out:
  ret void
}

; one phase on %members threads
define internal void @phase(ptr %pool, ptr %team, i64 %number, ptr %row, i64 %members) noinline nounwind {
entry:
  %params.from = getelementptr i64, ptr %row, i64 1
  %operands.from = getelementptr i64, ptr %row, i64 2
  %tasks.from = getelementptr i64, ptr %row, i64 3
  %function = load ptr, ptr %row
  %params = load ptr, ptr %params.from
  %operands = load ptr, ptr %operands.from
  %tasks = load i64, ptr %tasks.from
  %phase.at = getelementptr i8, ptr %team, i64 ${PHASE}
  %phase.old = load i64, ptr %phase.at
  %phase = add i64 %phase.old, 1
  store i64 %phase, ptr %phase.at
  %phase.high = shl i64 %phase, 16
  %number.high = shl i64 %number, 8
  %ticket = or i64 %phase.high, %number.high
  %most = mul i64 %members, ${chunks}
  %chunks = call i64 @llvm.umin.i64(i64 %most, i64 %tasks)
  %done.at = getelementptr i8, ptr %team, i64 ${DONE}
  store atomic i64 0, ptr %done.at monotonic, align 8
  br label %head
head: ; from the last member to the first, so that who is woken finds those that it wakes ready
  %k = phi i64 [ %members, %entry ], [ %i, %body ]
  %more = icmp ne i64 %k, 0
  br i1 %more, label %body, label %given
body:
  %i = sub i64 %k, 1
  %slot = call ptr @member(ptr %team, i64 %i)
  %function.at = getelementptr i8, ptr %slot, i64 ${FUNCTION}
  %params.at = getelementptr i8, ptr %slot, i64 ${PARAMS}
  %operands.at = getelementptr i8, ptr %slot, i64 ${OPERANDS}
  %tasks.at = getelementptr i8, ptr %slot, i64 ${TASKS}
  %chunks.at = getelementptr i8, ptr %slot, i64 ${CHUNKS}
  %ticket.at = getelementptr i8, ptr %slot, i64 ${TICKET}
  %members.at = getelementptr i8, ptr %slot, i64 ${MEMBERS}
  %its.ticket = or i64 %ticket, %i
  store atomic ptr %function, ptr %function.at monotonic, align 8
  store atomic ptr %params, ptr %params.at monotonic, align 8
  store atomic ptr %operands, ptr %operands.at monotonic, align 8
  store atomic i64 %tasks, ptr %tasks.at monotonic, align 8
  store atomic i64 %chunks, ptr %chunks.at monotonic, align 8
  store atomic i64 %members, ptr %members.at monotonic, align 8
  store atomic i64 %its.ticket, ptr %ticket.at release, align 8
  %first.scaled = mul i64 %chunks, %i
  %first = udiv i64 %first.scaled, %members
  %last.scaled = mul i64 %chunks, %k
  %last = udiv i64 %last.scaled, %members
  %old = load atomic i64, ptr %slot monotonic, align 8
  %generation.old = lshr i64 %old, 32
  %generation = add i64 %generation.old, 1
  %generation.high = shl i64 %generation, 32
  %first.high = shl i64 %first, 16
  %range = or i64 %first.high, %last
  %state = or i64 %generation.high, %range
  %before = atomicrmw xchg ptr %slot, i64 %state seq_cst
  br label %head
given:
  call void @wake_children(ptr %pool, ptr %team, i64 0, i64 %members)
  %n = call i64 @take_part(ptr %team, ptr %team, i64 %ticket, i64 %members)
  %others = sub i64 %chunks, %n
  br label %wait
wait:
  %spins = phi i64 [ 0, %given ], [ %spins.next, %spin ], [ 0, %yield ]
  %done = load atomic i64, ptr %done.at acquire, align 8
  %all = icmp eq i64 %done, %others
  br i1 %all, label %out, label %spin
spin:
  call void ${pause}
  %spins.next = add i64 %spins, 1
  %long = icmp ugt i64 %spins.next, 2000
  br i1 %long, label %yield, label %wait
yield: ; the thread that is waited for may need this core
  %system.at = getelementptr i8, ptr %pool, i64 ${SYSCALL}
  %system = load ptr, ptr %system.at
  %r = call i64 (i64, ...) %system(i64 ${sched_yield})
  br label %wait
out:
  ret void
}

; number of a free team, which is then taken, or -1
define internal i64 @take_team(ptr %pool) noinline nounwind {
entry:
  %count.at = getelementptr i8, ptr %pool, i64 ${TEAMS}
  %count = load i64, ptr %count.at
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %k.next, %next ]
  %more = icmp ult i64 %k, %count
  br i1 %more, label %body, label %none
body:
  %team = call ptr @team(ptr %pool, i64 %k)
  %busy.at = getelementptr i8, ptr %team, i64 ${BUSY}
  %busy = load atomic i64, ptr %busy.at monotonic, align 8
  %free = icmp eq i64 %busy, 0
  br i1 %free, label %try, label %next
try:
  %pair = cmpxchg ptr %busy.at, i64 0, i64 1 acq_rel acquire
  %taken = extractvalue { i64, i1 } %pair, 1
  br i1 %taken, label %found, label %next
next:
  %k.next = add i64 %k, 1
  br label %head
found:
  ret i64 %k
none:
  ret i64 -1
}

define internal ptr @team(ptr %pool, i64 %number) alwaysinline nounwind {
  %teams.at = getelementptr i8, ptr %pool, i64 ${TEAMS_AT}
  %teams = load i64, ptr %teams.at
  %offset = mul i64 %number, ${TEAM}
  %at = add i64 %teams, %offset
  %team = getelementptr i8, ptr %pool, i64 %at
  ret ptr %team
}

; take up to %wanted - 1 free workers into a team; returns its number of members
define internal i64 @take_workers(ptr %pool, ptr %team, i64 %wanted) noinline nounwind {
entry:
  %members = getelementptr i8, ptr %team, i64 ${MEMBER}
  store atomic ptr %team, ptr %members monotonic, align 8
  %count.at = getelementptr i8, ptr %pool, i64 ${WORKERS}
  %count = load atomic i64, ptr %count.at acquire, align 8
  %slots = getelementptr i8, ptr %pool, i64 ${SLOTS_AT}
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %k.next, %next ]
  %n = phi i64 [ 1, %entry ], [ %n.next, %next ]
  %more = icmp ult i64 %k, %count
  %room = icmp slt i64 %n, %wanted
  %goes.on = and i1 %more, %room
  br i1 %goes.on, label %body, label %out
body:
  %offset = mul i64 %k, ${SLOT}
  %slot = getelementptr i8, ptr %slots, i64 %offset
  %owner.at = getelementptr i8, ptr %slot, i64 ${OWNER}
  %owner = load atomic i64, ptr %owner.at monotonic, align 8
  %free = icmp eq i64 %owner, 0
  br i1 %free, label %try, label %next
try:
  %pair = cmpxchg ptr %owner.at, i64 0, i64 1 acq_rel acquire
  %taken = extractvalue { i64, i1 } %pair, 1
  br i1 %taken, label %note, label %next
note:
  %at = getelementptr ptr, ptr %members, i64 %n
  store atomic ptr %slot, ptr %at monotonic, align 8
  %n.more = add i64 %n, 1
  br label %next
next:
  %n.next = phi i64 [ %n, %body ], [ %n, %try ], [ %n.more, %note ]
  %k.next = add i64 %k, 1
  br label %head
out:
  ret i64 %n
}

; members 1 and up keep off the processor that this thread is on
define internal void @keep_off(ptr %pool, ptr %team, i64 %members) noinline nounwind {
entry:
  %mask = alloca [${CPU_WORDS} x i64]
  %getcpu.at = getelementptr i8, ptr %pool, i64 ${GETCPU}
  %getcpu = load ptr, ptr %getcpu.at
  %number = call i32 %getcpu()
  %cpu = sext i32 %number to i64
  %known = icmp ult i64 %cpu, ${MAX_CPUS}
  br i1 %known, label %start, label %out
start:
  %avoided = add i64 %cpu, 1
  %own.word = lshr i64 %cpu, 6
  %own.place = and i64 %cpu, 63
  %own.bit = shl i64 1, %own.place
  %others = xor i64 %own.bit, -1
  %allowed = getelementptr i8, ptr %pool, i64 ${CPUS}
  %system.at = getelementptr i8, ptr %pool, i64 ${SYSCALL}
  %system = load ptr, ptr %system.at
  br label %head
head:
  %k = phi i64 [ 1, %start ], [ %k.next, %next ]
  %more = icmp slt i64 %k, %members
  br i1 %more, label %body, label %out
body:
  %slot = call ptr @member(ptr %team, i64 %k)
  %avoids.at = getelementptr i8, ptr %slot, i64 ${AVOIDS}
  %avoids = load i64, ptr %avoids.at
  %thread.at = getelementptr i8, ptr %slot, i64 ${THREAD}
  %thread = load atomic i64, ptr %thread.at acquire, align 8
  %moved = icmp ne i64 %avoids, %avoided
  %runs = icmp ne i64 %thread, 0
  %tell = and i1 %moved, %runs
  br i1 %tell, label %copy, label %next
copy:
  %i = phi i64 [ 0, %body ], [ %i.next, %copy ]
  %from = getelementptr i64, ptr %allowed, i64 %i
  %to = getelementptr i64, ptr %mask, i64 %i
  %word = load i64, ptr %from
  %here = icmp eq i64 %i, %own.word
  %rest = and i64 %word, %others
  %kept = select i1 %here, i64 %rest, i64 %word
  store i64 %kept, ptr %to
  %i.next = add i64 %i, 1
  %again = icmp ult i64 %i.next, ${CPU_WORDS}
  br i1 %again, label %copy, label %call
call:
  %r = call i64 (i64, ...) %system(i64 ${sched_setaffinity}, i64 %thread, i64 ${CPU_BYTES}, ptr %mask)
  store i64 %avoided, ptr %avoids.at
  br label %next
next:
  %k.next = add i64 %k, 1
  br label %head
out:
  ret void
}

define internal void @give_back(ptr %team, i64 %count) noinline nounwind {
entry:
  br label %head
head:
  %k = phi i64 [ 1, %entry ], [ %k.next, %body ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %body, label %out
body:
  %slot = call ptr @member(ptr %team, i64 %k)
  %owner.at = getelementptr i8, ptr %slot, i64 ${OWNER}
  store atomic i64 0, ptr %owner.at release, align 8
  %k.next = add i64 %k, 1
  br label %head
out:
  %busy.at = getelementptr i8, ptr %team, i64 ${BUSY}
  store atomic i64 0, ptr %busy.at release, align 8
  ret void
}

; run the rows of a program in order on up to %threads threads; where %times is given, nanoseconds of each row go there
define void @${walk}(ptr %rows, i64 %count, ptr %pool, i64 %threads, ptr %times) nounwind {
entry:
  %active.at = getelementptr i8, ptr %pool, i64 ${ACTIVE}
  %cores.at = getelementptr i8, ptr %pool, i64 ${CORES}
  %others = atomicrmw add ptr %active.at, i64 1 monotonic
  %cores = load i64, ptr %cores.at
  %left = sub i64 %cores, %others
  %wanted = call i64 @llvm.smin.i64(i64 %threads, i64 %left)
  %many = icmp sgt i64 %wanted, 1
  br i1 %many, label %gather, label %start
gather:
  %number.taken = call i64 @take_team(ptr %pool)
  %has.team = icmp sge i64 %number.taken, 0
  br i1 %has.team, label %staff, label %start
staff:
  %team.taken = call ptr @team(ptr %pool, i64 %number.taken)
  %bounded = call i64 @llvm.smin.i64(i64 %wanted, i64 ${MAX_THREADS})
  %staffed = call i64 @take_workers(ptr %pool, ptr %team.taken, i64 %bounded)
  call void @keep_off(ptr %pool, ptr %team.taken, i64 %staffed)
  br label %start
start:
  %team = phi ptr [ null, %entry ], [ null, %gather ], [ %team.taken, %staff ]
  %number = phi i64 [ 0, %entry ], [ 0, %gather ], [ %number.taken, %staff ]
  %members = phi i64 [ 1, %entry ], [ 1, %gather ], [ %staffed, %staff ]
  %timed = icmp ne ptr %times, null
  br i1 %timed, label %begin, label %head
begin:
  %time.first = call i64 @now(ptr %pool)
  br label %head
head:
  %i = phi i64 [ 0, %start ], [ 0, %begin ], [ %i.next, %next ]
  %time = phi i64 [ 0, %start ], [ %time.first, %begin ], [ %time.next, %next ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %body, label %end
body:
  %row = getelementptr [${FIELDS} x i64], ptr %rows, i64 %i
  %tasks.at = getelementptr i64, ptr %row, i64 3
  %most.at = getelementptr i64, ptr %row, i64 4
  %tasks = load i64, ptr %tasks.at
  %most = load i64, ptr %most.at
  %useful = call i64 @llvm.smin.i64(i64 %tasks, i64 %most)
  %possible = call i64 @llvm.smin.i64(i64 %useful, i64 %members)
  %parallel = icmp sgt i64 %possible, 1
  br i1 %parallel, label %share, label %alone
share: ; other runs may have started since: leave them their cores
  %runs = load atomic i64, ptr %active.at monotonic, align 8
  %spare = sub i64 %cores, %runs
  %mine = add i64 %spare, 1
  %now.possible = call i64 @llvm.smin.i64(i64 %possible, i64 %mine)
  %still = icmp sgt i64 %now.possible, 1
  br i1 %still, label %together, label %alone
together:
  call void @phase(ptr %pool, ptr %team, i64 %number, ptr %row, i64 %now.possible)
  br label %ran
alone:
  %params.at = getelementptr i64, ptr %row, i64 1
  %operands.at = getelementptr i64, ptr %row, i64 2
  %function = load ptr, ptr %row
  %params = load ptr, ptr %params.at
  %operands = load ptr, ptr %operands.at
  call void %function(ptr %params, ptr %operands, i64 0, i64 %tasks, i64 0)
  br label %ran
ran:
  br i1 %timed, label %clock, label %next
clock:
  %time.now = call i64 @now(ptr %pool)
  %elapsed = sub i64 %time.now, %time
  %elapsed.at = getelementptr i64, ptr %times, i64 %i
  store i64 %elapsed, ptr %elapsed.at
  br label %next
next:
  %time.next = phi i64 [ %time, %ran ], [ %time.now, %clock ]
  %i.next = add i64 %i, 1
  br label %head
end:
  %has.members = icmp ne ptr %team, null
  br i1 %has.members, label %leave, label %out
leave:
  call void @give_back(ptr %team, i64 %members)
  br label %out
out:
  %before = atomicrmw sub ptr %active.at, i64 1 monotonic
  ret void
}

; end all workers of a pool
define void @${stop}(ptr %pool) nounwind {
entry:
  %stop.at = getelementptr i8, ptr %pool, i64 ${STOP}
  store atomic i64 1, ptr %stop.at seq_cst, align 8
  %count.at = getelementptr i8, ptr %pool, i64 ${WORKERS}
  %count = load atomic i64, ptr %count.at acquire, align 8
  %slots = getelementptr i8, ptr %pool, i64 ${SLOTS_AT}
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %k.next, %body ]
  %more = icmp ult i64 %k, %count
  br i1 %more, label %body, label %out
body:
  %offset = mul i64 %k, ${SLOT}
  %slot = getelementptr i8, ptr %slots, i64 %offset
  call void @wake(ptr %pool, ptr %slot)
  %k.next = add i64 %k, 1
  br label %head
out:
  ret void
}

declare i64 @llvm.umin.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)
declare void ${declared_pause}
