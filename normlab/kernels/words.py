"""Numbers in words, for plans that say what they are."""

NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def counted(number: int, noun: str) -> str:
    """Return a number of things, small numbers in words.

    >>> counted(2, "row"), counted(1, "row"), counted(139264, "byte")
    ('two rows', 'one row', '139,264 bytes')
    """
    said = NUMBERS[number] if 0 <= number < len(NUMBERS) else f"{number:,}"
    return f"{said} {noun}" if number == 1 else f"{said} {noun}s"
