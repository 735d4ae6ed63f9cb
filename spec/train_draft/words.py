"""Word lists for prompts. They were written for this purpose, and come from no data set."""

from __future__ import annotations


def _items(text: str) -> tuple[str, ...]:
    return tuple(" ".join(text.split()).split("; "))


TOPICS = _items(
    """
    the water cycle; solar panels; the French Revolution; black holes; sourdough bread; electric cars; public libraries;
    the human heart; climate change; remote work; chess openings; vaccines; volcanoes; the stock market; photosynthesis;
    medieval castles; jazz music; bees and pollination; marathon training; personal budgeting; machine learning; the
    Roman Empire; coral reefs; city cycling; renewable energy; sleep and memory; ancient Egypt; coffee brewing; online
    privacy; the immune system; urban gardens; space telescopes; negotiation; the Great Wall of China; yoga for
    beginners; plate tectonics; tea ceremonies; wind turbines; job interviews; the Silk Road; recycling plastic; the
    printing press; dog training; railways in Europe; quantum computers; healthy breakfasts; the Moon landing; time
    management; opera; rainforests; 3D printing; the Olympic Games; mental health at work; desert animals; watercolour
    painting; the history of money; earthquakes; team meetings; whales; the invention of the telephone; camping;
    databases; tropical storms; the Renaissance; learning a language; road safety; glaciers; pottery; the digestive
    system; video games; public speaking; wolves; the Suez Canal; cheese making; robots; bridges; the speed of light;
    school uniforms; street food; antibiotics; satellites; gravity; the periodic table; freelancing; the Vikings;
    kitchen hygiene; photography at night; penguins; elections; carbon dioxide; knitting; the Industrial Revolution;
    email etiquette; mountain climbing; the water supply of a city; poetry; tides; houseplants; the brain; airports;
    maps; fractions; first aid; friendship; a balanced diet; honey; the Nile; noise in cities; sailing; mosaics;
    thunderstorms; insurance; migrating birds; ballet; rivers and floods; batteries; museums; glass
    """
)

AUDIENCES = _items(
    """
    a ten-year-old; a beginner; a busy manager; a university student; my grandmother; a new colleague; a curious
    teenager; someone in a hurry; a group of tourists; an engineer; a patient; a customer; a teacher; a small business
    owner; a journalist; people who dislike the subject
    """
)

STYLES = _items(
    """
    friendly; formal; humorous; concise; detailed; persuasive; calm; poetic; plain; enthusiastic; professional;
    critical; encouraging; neutral
    """
)

LANGUAGES = _items(
    """
    French; Spanish; German; Italian; Portuguese; Dutch; Swedish; Latin
    """
)

PEOPLE = _items(
    """
    Anna Keller; James Okoro; Mei Tanaka; Carlos Rivera; Fatima Haddad; Liam Byrne; Priya Nair; Olga Petrova; Tom Baker;
    Sara Lindqvist; Kwame Mensah; Julia Rossi; Omar Farouk; Ella Novak; David Chen; Marta Kowalska; Noah Fischer; Aisha
    Bello; Peter Jansen; Lucia Moreno; Ivan Horvat; Grace Kim; Samuel Ortiz; Hanna Virtanen; Rahul Mehta; Chloe Martin;
    Yusuf Demir; Nina Larsen; George Papadakis; Emily Clarke; Diego Castillo; Amara Diallo
    """
)

CITIES = _items(
    """
    Berlin; Lagos; Osaka; Lisbon; Toronto; Nairobi; Lyon; Boston; Madrid; Prague; Chennai; Dublin; Helsinki; Santiago;
    Melbourne; Seattle; Cairo; Oslo; Naples; Denver; Utrecht; Hanoi; Bristol; Krakow; Montreal; Accra
    """
)

COMPANIES = _items(
    """
    Northwind Logistics; Blue Harbor Foods; Acorn Software; Solaris Energy; Red Maple Books; Vertex Labs; Golden Gate
    Travel; Hillside Clinic; Orion Furniture; Clearwater Bank; Pixel Forge; Green Valley Farms; Atlas Motors; Silver
    Lake Hotel; Quick Fix Plumbing; Moonlight Bakery; Summit Sports; Harbour & Sons
    """
)

PRODUCTS = _items(
    """
    desk lamp; coffee grinder; hiking backpack; wireless keyboard; rain jacket; bicycle helmet; teapot; noise-cancelling
    headphones; office chair; water bottle; kitchen scale; phone case; yoga mat; tent; air purifier; electric
    toothbrush; board game; garden hose; smart watch; wool blanket; power bank; frying pan; travel pillow; desk fan
    """
)

JOBS = _items(
    """
    software engineer; nurse; data analyst; chef; teacher; electrician; graphic designer; accountant; project manager;
    pharmacist; truck driver; translator; architect; sales manager; mechanic; editor
    """
)

MONTHS = _items(
    """
    January; February; March; April; May; June; July; August; September; October; November; December
    """
)

OPINIONS = _items(
    """
    arrived two days late but works perfectly; broke after a week of light use; is worth every cent; looks better than
    in the pictures; is too heavy for daily use; was exactly what I needed; is fine for the price, nothing more; makes a
    strange noise when it is warm; was a gift and everybody loved it; has a battery that lasts three days; came in a
    damaged box; is easy to clean and to store
    """
)

COUNTRIES = _items(
    """
    France; Japan; Brazil; Egypt; Canada; India; Kenya; Norway; Mexico; Turkey; Vietnam; Poland; Chile; Morocco; Iceland;
    South Korea; Portugal; Nigeria; Greece; Australia; Peru; Switzerland; Thailand; Ireland; Argentina; Hungary; Nepal;
    New Zealand; Cuba; Finland; Indonesia; Jordan
    """
)

WORKS = _items(
    """
    Hamlet; Moby-Dick; Pride and Prejudice; Don Quixote; The Odyssey; Frankenstein; War and Peace; Alice in Wonderland;
    Casablanca; Citizen Kane; The Wizard of Oz; Gone with the Wind; Metropolis; Dracula; The Great Gatsby; Les Misérables;
    Treasure Island; Sherlock Holmes; Robinson Crusoe; The Magic Flute; Swan Lake; Carmen; Jane Eyre; Faust; The Jungle Book;
    Around the World in Eighty Days
    """
)

FIGURES = _items(
    """
    Marie Curie; Isaac Newton; Cleopatra; Napoleon Bonaparte; Ada Lovelace; Leonardo da Vinci; Abraham Lincoln; Charles
    Darwin; Florence Nightingale; Julius Caesar; Albert Einstein; Jane Austen; Nelson Mandela; Mozart; Galileo Galilei;
    Queen Victoria; Mahatma Gandhi; Joan of Arc; Marco Polo; Frida Kahlo; Socrates; Nikola Tesla; Amelia Earhart; Beethoven;
    Genghis Khan; Vincent van Gogh
    """
)

EVENTS = _items(
    """
    the First World War; the French Revolution; the Great Depression; the American Civil War; the Cold War; the Black Death;
    the Russian Revolution; the Crusades; the Vietnam War; the gold rush in California; the fall of Rome; the Second World
    War; the Hundred Years' War; the Boston Tea Party
    """
)

LOCAL_EVENTS = _items(
    """
    a fire in a school; the opening of a new bridge; a strike of bus drivers; a flood after days of rain; the election of a
    mayor; a robbery in a jewellery shop; the rescue of a dog from a well; a power cut that lasted a night; the birth of twin
    pandas in the zoo; a festival of street music; the closure of a factory; a car accident on the ring road; a protest
    against higher rents; the discovery of an old shipwreck
    """
)

DEEDS = _items(
    """
    has found a bag with a large sum of money and returned it; has won a prize for an invention; was arrested after a chase
    through the city; has cycled around the world; has opened a shop that sells nothing; ran into a burning house to save a
    child; has lost everything in a storm; is accused of selling forged paintings; has survived three days in the mountains;
    was elected against all forecasts
    """
)

INVENTIONS = _items(
    """
    telephone; steam engine; microscope; light bulb; bicycle; refrigerator; compass; parachute; piano; camera; zipper; radio;
    thermometer; submarine; sewing machine; barometer
    """
)

FEATS = _items(
    """
    walk on the Moon; climb Mount Everest; fly across the Atlantic; sail around the world; reach the South Pole; run a mile in
    four minutes; use paper money; cross Antarctica alone; swim the English Channel; travel into space
    """
)

ANIMALS = _items(
    """
    wolves; penguins; giraffes; octopuses; owls; bears; dolphins; kangaroos; bats; elephants; sharks; tigers; tortoises; bees;
    camels; otters
    """
)

DISHES = _items(
    """
    pizza; paella; sushi; lasagne; falafel; goulash; curry; pancakes; risotto; hummus; tacos; borscht; ratatouille; dumplings
    """
)

ORGANS = _items("heart; liver; kidney; pancreas; spleen; brain; skin; stomach; lung; thyroid")

VOCABULARY = _items(
    """
    serendipity; frugal; ambiguous; resilient; nostalgia; candid; meticulous; obsolete; benevolent; paradox; eloquent; tedious;
    gregarious; lucid
    """
)

SUPERLATIVES = _items("ocean; desert; island; city; lake; bird; library; planet; waterfall; airport; cave; stadium")

THINGS = _items(
    """
    apples; marbles; pencils; cookies; stickers; books; eggs; candles; coins; bottles; flowers; toys; shirts; tomatoes; stamps;
    balloons; cupcakes; chairs; oranges; bricks
    """
)

GERMAN_MONTHS = _items("Januar; März; April; Mai; Juni; September; Oktober; Dezember")
