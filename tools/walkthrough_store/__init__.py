"""The store that tools/walkthrough looks at: 50 conversations, some with a branch."""

import random

import deltastore

THREADS = 50
TURNS = 12
WORDS = "tea milk sugar kettle cup pot leaf water steam spoon tray biscuit lemon honey mint".split()


def make(path: str) -> None:
    drawn = random.Random(7)
    with deltastore.open(path, sync="meta") as store:  # the process may die, the machine not: enough for a trial
        for number in range(THREADS):
            thread = store.thread(f"user-{number:02}")
            notes = [drawn.choice(WORDS) for _ in range(40)]
            for turn in range(TURNS):
                question = " ".join(drawn.choices(WORDS, k=12))
                thread.append({"messages": [{"role": "user", "content": f"{turn}: {question}?"}]})
                notes[drawn.randrange(len(notes))] = drawn.choice(WORDS)
                answer = " ".join(drawn.choices(WORDS, k=10))
                message = {"role": "assistant", "content": answer}
                done = thread.append({"messages": [message], "notes": " ".join(notes), "turn": turn})
                if turn == TURNS - 2:
                    tagged = done
                    thread.tag("before-lunch", at=done)
            if number % 10 == 7:  # a branch that was given up
                thread.append({"messages": [{"role": "user", "content": "Forget that."}]}, at=tagged)
                thread.append({"messages": [{"role": "user", "content": "As I said."}]}, at=done)
