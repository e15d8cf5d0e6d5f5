"""Word lists for the synthetic data: names, places, small facts. Data only."""

from __future__ import annotations


def words(text: str) -> tuple[str, ...]:
    """A comma-separated list; line ends count as spaces."""
    return tuple(word.strip() for word in " ".join(text.split()).split(","))


def _pairs(text: str) -> dict[str, str]:
    """`key: value` entries, separated by semicolons."""
    entries = (entry.partition(":") for entry in " ".join(text.split()).split(";"))
    return {key.strip(): value.strip() for key, _, value in entries}


CITIES = words(
    """
    Berlin, Madrid, Oslo, Vienna, Lisbon, Dublin, Prague, Athens, Warsaw, Rome, Toronto, Chicago, Boston, Seattle,
    Denver, Austin, Osaka, Kyoto, Seoul, Mumbai, Delhi, Nairobi, Cairo, Lagos, Lima, Bogota, Santiago, Sydney,
    Perth, Auckland, San Diego, New Orleans, Buenos Aires, Cape Town, Tel Aviv, Hong Kong
    """
)
PEOPLE = words(
    """
    Anna, Ben, Carla, David, Elena, Farid, Grace, Hugo, Ines, Jonas, Kim, Liam, Maria, Noah, Olga, Paul, Quinn,
    Rosa, Sam, Tara, Uma, Victor, Wendy, Xavier, Yara, Zoe, Dr. Miller, Mrs. Brown, Mr. Tanaka
    """
)
COMPANIES = words(
    """
    Apple, Siemens, Toyota, Nestle, Intel, Samsung, Adidas, Shell, Boeing, Sony, Nokia, Volvo
    """
)
PRODUCTS = words(
    """
    coffee beans, running shoes, desk lamp, water bottle, notebook, headphones, garden hose, winter coat, phone
    case, wooden chair, green tea, bicycle helmet, keyboard, backpack
    """
)
TOPICS = words(
    """
    solar power, whales, medieval castles, machine learning, healthy breakfast, the moon landing, electric cars,
    bird migration, sourdough bread, the Roman Empire, volcanoes, chess openings, coral reefs, jazz music
    """
)
DATES = tuple(f"2026-{month:02d}-{day:02d}" for month in range(1, 13) for day in (3, 8, 14, 19, 27))
TIMES = tuple(f"{hour:02d}:{minute:02d}" for hour in range(7, 22) for minute in (0, 15, 30, 45))
AMOUNTS = (5, 10, 12.5, 20, 25, 49.99, 50, 75, 100, 120.5, 250, 300, 999.95)

CATEGORIES: dict[str, tuple[str, ...]] = {
    "fruits": words("apple, banana, cherry, mango, pear, grape, orange, plum, kiwi, peach, lemon, fig"),
    "vegetables": words("carrot, potato, spinach, onion, broccoli, pea, cabbage, pepper, leek, celery"),
    "animals": words("dog, cat, horse, elephant, lion, rabbit, bear, wolf, fox, deer, goat, sheep"),
    "birds": words("eagle, sparrow, owl, robin, crow, swan, parrot, pigeon, penguin, heron"),
    "colors": words("red, blue, green, yellow, purple, orange, black, white, brown, pink"),
    "countries": words(
        """
        Germany, Japan, Brazil, Canada, Kenya, Spain, India, Norway, Egypt, Mexico, Peru, Greece
        """
    ),
    "musical instruments": words(
        """
        piano, violin, guitar, drum, flute, trumpet, harp, cello, clarinet, saxophone
        """
    ),
    "sports": words("football, tennis, swimming, running, basketball, rowing, cycling, boxing, hockey, skiing"),
    "planets": words("Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus, Neptune"),
    "programming languages": words("Python, JavaScript, Rust, Go, Java, C, Ruby, Swift, Kotlin, Haskell"),
    "trees": words("oak, pine, maple, birch, willow, cedar, elm, ash, beech, spruce"),
    "tools": words("hammer, saw, drill, wrench, pliers, chisel, file, screwdriver, level, clamp"),
    "drinks": words("water, tea, coffee, milk, juice, cocoa, lemonade, cider"),
    "European capitals": words("Berlin, Madrid, Rome, Vienna, Oslo, Athens, Lisbon, Prague, Warsaw, Dublin"),
    "languages": words("English, Spanish, French, German, Chinese, Arabic, Hindi, Russian, Swahili, Italian"),
    "kitchen utensils": words("spoon, fork, knife, whisk, ladle, spatula, grater, peeler, sieve, tongs"),
}

CAPITALS = _pairs(
    """
    Germany: Berlin; Spain: Madrid; Italy: Rome; Austria: Vienna; Norway: Oslo; Greece: Athens; Portugal: Lisbon;
    Ireland: Dublin; Poland: Warsaw; Sweden: Stockholm; Finland: Helsinki; Denmark: Copenhagen; Belgium: Brussels;
    Hungary: Budapest; Japan: Tokyo; China: Beijing; India: New Delhi; South Korea: Seoul; Thailand: Bangkok;
    Vietnam: Hanoi; Egypt: Cairo; Kenya: Nairobi; Nigeria: Abuja; Ghana: Accra; Morocco: Rabat; Canada: Ottawa;
    Mexico: Mexico City; Cuba: Havana; Brazil: Brasilia; Argentina: Buenos Aires; Chile: Santiago; Peru: Lima;
    Colombia: Bogota; Australia: Canberra; New Zealand: Wellington; Russia: Moscow; Turkey: Ankara; Iran: Tehran;
    Iraq: Baghdad; Israel: Jerusalem; Ukraine: Kyiv; Romania: Bucharest; Switzerland: Bern; the Netherlands:
    Amsterdam; the United Kingdom: London; the United States: Washington, D.C.; Iceland: Reykjavik
    """
)

TRANSLATIONS: dict[str, dict[str, str]] = {
    "French": _pairs(
        """
        hello: bonjour;
        goodbye: au revoir; thank you: merci; please: s'il vous plaît; yes: oui; no: non; water: eau; bread: pain;
        house: maison; dog: chien; cat: chat; book: livre; good morning: bonjour; friend: ami; school: école; red:
        rouge; one: un; two: deux; three: trois; milk: lait; the sun: le soleil; night: nuit; day: jour; apple:
        pomme; love: amour
        """
    ),
    "Spanish": _pairs(
        """
        hello: hola;
        goodbye: adiós; thank you: gracias; please: por favor; yes: sí; no: no; water: agua; bread: pan; house:
        casa; dog: perro; cat: gato; book: libro; good morning: buenos días; friend: amigo; school: escuela; red:
        rojo; one: uno; two: dos; three: tres; milk: leche; the sun: el sol; night: noche; day: día; apple: manzana;
        love: amor
        """
    ),
    "German": _pairs(
        """
        hello: hallo;
        goodbye: auf Wiedersehen; thank you: danke; please: bitte; yes: ja; no: nein; water: Wasser; bread: Brot;
        house: Haus; dog: Hund; cat: Katze; book: Buch; good morning: guten Morgen; friend: Freund; school: Schule;
        red: rot; one: eins; two: zwei; three: drei; milk: Milch; the sun: die Sonne; night: Nacht; day: Tag; apple:
        Apfel; love: Liebe
        """
    ),
    "Italian": _pairs(
        """
        goodbye: arrivederci; thank you: grazie; please: per favore; yes: sì; no: no; water: acqua; bread: pane;
        house: casa; dog: cane; cat: gatto; book: libro; good morning: buongiorno; friend: amico; school: scuola;
        red: rosso; one: uno; two: due; three: tre; milk: latte; the sun: il sole; night: notte; day: giorno; apple:
        mela; love: amore
        """
    ),
}

OPPOSITES = _pairs(
    """
    cold: hot; big: small; fast: slow; light: dark; happy: sad; old: new; high: low; open: closed; rich: poor;
    early: late; hard: soft; full: empty; strong: weak; wet: dry; loud: quiet; near: far; thick: thin; deep:
    shallow; clean: dirty; brave: afraid
    """
)
PLURALS = _pairs(
    """
    child: children; mouse: mice; foot: feet; tooth: teeth; man: men; woman: women; goose: geese; box: boxes; city:
    cities; leaf: leaves; knife: knives; sheep: sheep; bus: buses; baby: babies; wolf: wolves; dog: dogs
    """
)
MADE_BY = _pairs(
    """
    milk: a cow; honey: bees; wool: sheep; eggs: hens; silk: silkworms; a web: a spider; bread: a baker; a chair: a
    carpenter
    """
)

PLAIN_QA: tuple[tuple[str, str], ...] = (
    ("What color do you get when you mix blue and yellow?", "Blue and yellow make green."),
    ("How long is a week?", "A week is seven days long."),
    ("What is the name of our planet?", "Our planet is called Earth."),
    ("Which is the third planet from the sun?", "Earth is the third planet from the sun."),
    ("Where do all people live?", "All people live on Earth."),
    ("What colour is grass?", "Grass is green."),
    ("What colour is the sky at noon?", "At noon the sky is blue."),
    ("What is snow?", "Snow is frozen water that falls in flakes."),
    ("How many hours are in a day?", "There are 24 hours in a day."),
    ("How many weeks are in a year?", "There are 52 weeks in a year."),
    ("What do we use an umbrella for?", "An umbrella keeps us dry in the rain."),
    ("What do you call frozen water?", "Frozen water is called ice."),
    ("How many legs does a spider have?", "A spider has eight legs."),
    ("What do bees make?", "Bees make honey."),
    ("Which planet is known as the Red Planet?", "Mars is known as the Red Planet."),
    ("What is the largest ocean on Earth?", "The Pacific Ocean is the largest ocean on Earth."),
    ("At what temperature does water freeze?", "Water freezes at 0 degrees Celsius, which is 32 degrees Fahrenheit."),
    ("How many minutes are in an hour?", "There are 60 minutes in an hour."),
    ("What gas do plants take in?", "Plants take in carbon dioxide."),
    ("Who wrote Hamlet?", "William Shakespeare wrote Hamlet."),
    ("What is the opposite of up?", "The opposite of up is down."),
    ("Why is the sky blue?", "The sky looks blue because air scatters blue sunlight more than red sunlight."),
    ("How many months are in a year?", "There are twelve months in a year."),
    ("What is a synonym for happy?", "A synonym for happy is glad."),
    ("What is the tallest animal?", "The giraffe is the tallest animal."),
    ("What does a thermometer measure?", "A thermometer measures temperature."),
    ("Which is heavier, a feather or a brick?", "A brick is heavier than a feather."),
    ("Where does the sun rise?", "The sun rises in the east."),
    ("What is ice made of?", "Ice is frozen water."),
    ("How many sides does a triangle have?", "A triangle has three sides."),
    ("What do you call a baby dog?", "A baby dog is called a puppy."),
    ("What is the boiling point of water?", "Water boils at 100 degrees Celsius at sea level."),
    ("What is the currency of Japan?", "The currency of Japan is the yen."),
    ("Who painted the Mona Lisa?", "Leonardo da Vinci painted the Mona Lisa."),
    ("What is the largest planet in our solar system?", "Jupiter is the largest planet in our solar system."),
    ("What organ pumps blood through the body?", "The heart pumps blood through the body."),
    (
        "Give me one tip for sleeping better.",
        "Go to bed at the same time every evening and keep the room dark and cool.",
    ),
    ("Write a short sentence about the sea.", "The sea was calm and silver under the morning sun."),
    (
        "Explain what a computer is in one sentence.",
        "A computer is a machine that follows instructions to store and process information.",
    ),
    ("Say something kind.", "You are doing better than you think, and it is good that you are here."),
    (
        "What is photosynthesis?",
        "Photosynthesis is how plants use sunlight, water and carbon dioxide to make sugar and oxygen.",
    ),
    ("Tell me a fun fact.", "Octopuses have three hearts."),
    (
        "What is the difference between a list and a tuple in Python?",
        "A list can be changed after it is made; a tuple cannot.",
    ),
    ("How do I boil an egg?", "Put the egg into boiling water, wait eight to ten minutes, then cool it in cold water."),
    ("Who was the first person on the moon?", "Neil Armstrong was the first person on the moon, in 1969."),
    ("What language is spoken in Brazil?", "Portuguese is spoken in Brazil."),
    ("How many continents are there?", "There are seven continents."),
    ("What is the chemical symbol for gold?", "The chemical symbol for gold is Au."),
    ("What do cows drink?", "Cows drink water."),
    ("Is the earth flat?", "No. The earth is round, slightly flattened at the poles."),
)

YES_NO: dict[str, tuple[str, ...]] = {
    "Yes": (
        "Is fire hot?",
        "Is the sun a star?",
        "Do fish live in water?",
        "Is snow cold?",
        "Do birds have wings?",
        "Is a whale a mammal?",
        "Is steam made of water?",
        "Is ten more than five?",
        "Is Paris in France?",
        "Do plants need light?",
        "Is a square a shape?",
        "Can dogs bark?",
        "Is iron a metal?",
        "Do cars have wheels?",
        "Is milk white?",
        "Is Tuesday after Monday?",
        "Is a lemon sour?",
        "Does the moon go around the earth?",
        "Is Python a programming language?",
        "Are ants insects?",
    ),
    "No": (
        "Is fire cold?",
        "Is the moon a star?",
        "Do fish live in trees?",
        "Is snow hot?",
        "Do snakes have legs?",
        "Is a shark a mammal?",
        "Is sand made of water?",
        "Is three more than five?",
        "Is Paris in Japan?",
        "Do stones need food?",
        "Is a circle a number?",
        "Can cats read books?",
        "Is wood a metal?",
        "Do boats have wheels?",
        "Is coal white?",
        "Is Monday after Tuesday?",
        "Is sugar sour?",
        "Does the sun go around the moon?",
        "Is Python a fruit?",
        "Are spiders birds?",
    ),
}

PYTHON_TASKS: tuple[tuple[str, str], ...] = (
    (
        "checks whether a number is even",
        "def is_even(n):\n    return n % 2 == 0",
    ),
    (
        "returns the largest of three numbers",
        "def largest(a, b, c):\n    return max(a, b, c)",
    ),
    (
        "counts the vowels in a string",
        "def count_vowels(text):\n    return sum(char in 'aeiou' for char in text.lower())",
    ),
    (
        "computes the factorial of n",
        "def factorial(n):\n    result = 1\n    for i in range(2, n + 1):\n        result *= i\n    return result",
    ),
    (
        "returns the n-th Fibonacci number",
        "def fibonacci(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a",
    ),
    (
        "removes duplicates from a list and keeps the order",
        "def unique(items):\n    return list(dict.fromkeys(items))",
    ),
    (
        "checks whether a word is a palindrome",
        "def is_palindrome(word):\n    word = word.lower()\n    return word == word[::-1]",
    ),
    (
        "reverses the order of words in a sentence",
        "def reversewords(sentence):\n    return ' '.join(sentence.split()[::-1])",
    ),
    (
        "reverses a list",
        "def reverse_list(items):\n    return items[::-1]",
    ),
    (
        "returns the text backwards",
        "def backwards(text):\n    return text[::-1]",
    ),
    (
        "sums the numbers in a list",
        "def total(numbers):\n    return sum(numbers)",
    ),
    (
        "finds the average of a list of numbers",
        "def average(numbers):\n    return sum(numbers) / len(numbers)",
    ),
    (
        "converts Celsius to Fahrenheit",
        "def to_fahrenheit(celsius):\n    return celsius * 9 / 5 + 32",
    ),
    (
        "reads a file and returns its lines",
        "def read_lines(path):\n    with open(path) as file:\n        return file.read().splitlines()",
    ),
    (
        "counts how often each word appears in a text",
        "def word_counts(text):\n"
        "    counts = {}\n"
        "    for word in text.split():\n"
        "        counts[word] = counts.get(word, 0) + 1\n"
        "    return counts",
    ),
    (
        "checks whether a number is prime",
        "def is_prime(n):\n"
        "    if n < 2:\n"
        "        return False\n"
        "    for i in range(2, int(n ** 0.5) + 1):\n"
        "        if n % i == 0:\n"
        "            return False\n"
        "    return True",
    ),
    (
        "merges two dictionaries",
        "def merge(a, b):\n    return {**a, **b}",
    ),
    (
        "flattens a list of lists",
        "def flatten(lists):\n    return [item for inner in lists for item in inner]",
    ),
    (
        "finds the longest word in a sentence",
        "def longest_word(sentence):\n    return max(sentence.split(), key=len)",
    ),
    (
        "computes the greatest common divisor of two numbers",
        "def gcd(a, b):\n    while b:\n        a, b = b, a % b\n    return a",
    ),
    (
        "sorts a list of names by length",
        "def sort_by_length(names):\n    return sorted(names, key=len)",
    ),
    (
        "swaps keys and values of a dictionary",
        "def swap(mapping):\n    return {value: key for key, value in mapping.items()}",
    ),
    (
        "returns the last element of a list or None when it is empty",
        "def last(items):\n    return items[-1] if items else None",
    ),
    (
        "capitalizes every word of a string",
        "def title_case(text):\n    return ' '.join(word.capitalize() for word in text.split())",
    ),
    (
        "squares every number in a list",
        "def squares(numbers):\n    return [n * n for n in numbers]",
    ),
)
